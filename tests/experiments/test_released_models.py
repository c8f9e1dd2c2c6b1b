"""model=llama3_8b and its like: published models as choices of `conf/model`."""

import functools
import json
import pathlib
import time

import pytest

from blocks.families.family import overrides_of
from blocks.families.fields import Fields
from experiments import api
from experiments.errors import UserError
from experiments.tasks.count import Count, layout_of_model

ROOT = pathlib.Path(__file__).parents[2]
PUBLISHED = json.loads((ROOT / "tests/golden/released/param_counts.json").read_text())
LLAMA31 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {"rope_type": "yarn", "original_max_position_embeddings": 4096}
BOTH = {"mscale": 1.0, "mscale_all_dim": 1.0}

# Choice -> name in the file of totals, and what the published config has beside sizes.
RELEASED = {
    "gpt2": ("GPT-2 small", {}),
    "gpt2_xl": ("GPT-2 xl", {}),
    "llama3_8b": (
        "Llama-3-8B / 3.1-8B",
        {"rms_norm_eps": 1e-5, "rope_theta": 5e5},
    ),
    "llama3_1_8b": (
        "Llama-3-8B / 3.1-8B",
        {"rms_norm_eps": 1e-5, "rope_parameters": LLAMA31},
    ),
    "llama3_405b": (
        "Llama-3.1-405B",
        {"rms_norm_eps": 1e-5, "rope_parameters": LLAMA31},
    ),
    "mistral_7b": ("Mistral-7B-v0.1", {"rms_norm_eps": 1e-5}),
    "qwen2_5_7b": ("Qwen2.5-7B", {"rope_theta": 1e6}),
    "qwen3_0_6b": ("Qwen3-0.6B", {"rope_theta": 1e6}),
    "qwen3_8b": ("Qwen3-8B", {"rope_theta": 1e6}),
    "qwen3_30b_a3b": ("Qwen3-30B-A3B", {"rope_theta": 1e6, "norm_topk_prob": True}),
    "gemma2_9b": ("Gemma-2-9B", {}),
    "gemma3_1b": ("Gemma-3-1B", {"sliding_window": 512}),
    "olmo2_7b": ("OLMo2-7B", {"rms_norm_eps": 1e-6, "rope_theta": 5e5}),
    "deepseek_v3": (
        "DeepSeek-V3 (no MTP)",
        {"rope_parameters": {**YARN, **BOTH, "rope_theta": 1e4, "factor": 40.0}},
    ),
    "kimi_k2": (
        "Kimi K2",
        {
            "routed_scaling_factor": 2.827,
            "rope_parameters": {
                **YARN,
                **BOTH,
                "rope_theta": 5e4,
                "factor": 32.0,
                "beta_fast": 1.0,
            },
        },
    ),
    "gpt_oss_20b": (
        "gpt-oss-20b",
        {"rope_parameters": {**YARN, "factor": 32.0, "truncate": False}},
    ),
    "gpt_oss_120b": (
        "gpt-oss-120b",
        {"rope_parameters": {**YARN, "factor": 32.0, "truncate": False}},
    ),
    "llama4_scout": ("Llama 4 Scout (text part)", {}),
    "llama4_maverick": ("Llama 4 Maverick (text part)", {"use_qk_norm": False}),
    "bert_base": ("BERT-base-uncased (BertForMaskedLM)", {}),
    "t5_base_encoder": ("T5-base encoder only", {}),
    "vit_b16": ("ViT-B/16 + 1000-class head", {}),
    "qwen3_next_80b_a3b": ("Qwen3-Next-80B-A3B (no MTP)", {"rope_theta": 1e7}),
}
# Sizes of our own, with the parts that the command line has.
OWN = {"tiny", "small", "gpt2_124m", "plain_mlp", "residual_mlp"}
OWN |= {"bert_tiny", "vit_digits"}


def config_of(name):
    total, more = RELEASED[name]
    return {**PUBLISHED[total]["config"], **more}


@functools.cache
def composed(*overrides):
    (config,) = api.compose(["task=count", "seq_len=64", *overrides])
    return config


def test_every_released_model_is_listed_here():
    found = {p.stem for p in (ROOT / "conf/model").glob("*.yaml")}
    assert found - OWN - {"vit_22b"} == set(RELEASED)


@pytest.mark.parametrize("name", RELEASED)
def test_the_choice_is_what_the_published_config_makes(name):
    lines = overrides_of(Fields(config_of(name), name))
    chosen, made = composed(f"model={name}"), composed(*lines)
    assert chosen.model == made.model


@pytest.mark.parametrize("name", RELEASED)
def test_totals_are_the_published_ones_and_counted_in_seconds(name):
    expected = PUBLISHED[RELEASED[name][0]]
    config = composed(f"model={name}")
    started = time.process_time()
    node = Count().collect(layout_of_model(config), config.seq_len)
    assert time.process_time() - started < 5
    assert node["n_params"] == expected["total"]
    assert node["n_active"] == (expected["active"] or expected["total"])
    text = (ROOT / f"conf/model/{name}.yaml").read_text()
    if name != "llama3_1_8b":  # as Llama 3
        assert f"{expected['total']:,} parameters" in text
    if expected["active"]:
        assert f"{expected['active']:,} of one token" in text


def test_the_matrices_of_vit_22b_are_the_21743_million_of_its_paper():
    """arXiv 2302.05442: 21,743 M is what the layers have in matrices."""
    layout = layout_of_model(composed("model=vit_22b"))
    matrices = [s.size for s in layout.specs.values() if s.role == "matrix"]
    assert sum(matrices) == 48 * (4 * 6144**2 + 2 * 6144 * 24576) == 21_743_271_936


@pytest.mark.parametrize(
    "name, told",
    [
        (
            "bert_base",
            "data: TokenEncoder reads masked texts, Markov has none but tokens",
        ),
        ("vit_b16", "data: VisionModel reads images, Markov has none but tokens"),
    ],
)
def test_data_that_a_model_cannot_read_are_refused_before_anything_is_written(
    name, told, tmp_path
):
    output = f"runtime.output_dir={tmp_path}"
    configs = api.compose([f"model={name}", "data=markov", output])
    with pytest.raises(UserError, match=told):
        api.run(configs)
    assert not list(tmp_path.iterdir())


def test_a_size_can_be_changed_and_a_part_replaced():
    model = composed("model=llama3_8b", "model.n_layers=4", "ffn=geglu").model
    assert (model["n_layers"], model["ffn"].name) == (4, "GLU")
    assert model["attention"] == composed("model=llama3_8b").model["attention"]


def test_a_number_of_a_part_that_was_replaced_goes_with_it():
    """The eps that the model's file gives its norm; not one that somebody typed."""
    assert composed("model=llama3_8b", "norm=derf").model["norm"].name == "Derf"
    with pytest.raises(UserError, match=r"model.norm.eps: Derf .*no"):
        composed("model=llama3_8b", "norm=derf", "model.norm.eps=1e-3")
