"""task=count: exact counts of models of any size, from shapes alone."""

import functools
import io
import json
import pathlib
import time

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from rich.console import Console

from blocks.families.family import overrides_of
from blocks.families.fields import Fields
from experiments import api, counting
from experiments.errors import UserError
from experiments.flops import matmul_flops
from experiments.tasks.count import Count, layout_of_model

RELEASED = pathlib.Path(__file__).parents[1] / "golden" / "released"
# Sums over the parameters of models of transformers 5.24.0, built from these fields on
# torch's meta device (the rest at the defaults of its config classes); "active" is
# all but the experts that a token does not meet.
PUBLISHED = json.loads((RELEASED / "param_counts.json").read_text())
NAMED = (
    "GPT-2 small",
    "GPT-2 xl",
    "Llama-3-8B / 3.1-8B",
    "Qwen3-8B",
    "Qwen3-0.6B",
    "Qwen2.5-7B",
    "DeepSeek-V3 (no MTP)",
    "gpt-oss-120b",
    "gpt-oss-20b",
)


# Models that are no language models: their totals are in test_released_models.py.
ENCODERS = ("bert", "t5", "vit")


def quick_and_slow():
    language = [
        name
        for name, node in PUBLISHED.items()
        if node["config"]["model_type"] not in ENCODERS
    ]
    rest = [name for name in language if name not in NAMED]
    return [*NAMED, *(pytest.param(n, marks=pytest.mark.slow) for n in rest)]


def counted(*overrides, seq_len=64):
    (config,) = api.compose(["task=count", f"seq_len={seq_len}", *overrides])
    return Count().collect(layout_of_model(config), seq_len)


@functools.cache
def of_published(name, seq_len=64):
    lines = overrides_of(Fields(PUBLISHED[name]["config"], name))
    return counted(*lines, seq_len=seq_len)


def by_part(node, key="n_params"):
    return {row["part"]: row[key] for row in node["parts"]}


@pytest.mark.parametrize("name", quick_and_slow())
def test_published_totals(name):
    expected = PUBLISHED[name]
    node = of_published(name)
    assert node["n_params"] == expected["total"]
    assert node["n_active"] == expected["active"] or expected["active"] is None
    parts = by_part(node)
    assert parts["embedding"] == expected["embedding"]
    assert parts.get("head", 0) == expected["head"]
    assert sum(parts.values()) == expected["total"]


def test_published_figures_are_those_of_the_file():
    """Published figures: GPT-2 124M and XL, Llama 3.1 8B, Qwen, DeepSeek-V3, gpt-oss."""
    totals = {
        "GPT-2 small": 124_439_808,
        "GPT-2 xl": 1_557_611_200,
        "Llama-3-8B / 3.1-8B": 8_030_261_248,
        "Qwen3-8B": 8_190_735_360,
        "Qwen3-0.6B": 596_049_920,
        "Qwen2.5-7B": 7_615_616_512,
        "DeepSeek-V3 (no MTP)": 671_026_404_352,
        "gpt-oss-120b": 116_829_156_672,
        "gpt-oss-20b": 20_914_757_184,
    }
    assert {name: PUBLISHED[name]["total"] for name in NAMED} == totals
    assert PUBLISHED["DeepSeek-V3 (no MTP)"]["active"] == 37_552_282_624


def test_671_billion_parameters_are_counted_in_seconds_and_not_allocated():
    lines = overrides_of(Fields(PUBLISHED["DeepSeek-V3 (no MTP)"]["config"]))
    started = time.process_time()
    node = counted(*lines)
    assert time.process_time() - started < 10
    parts = by_part(node)
    assert parts["experts"] == 58 * 256 * 3 * 7168 * 2048
    assert parts["shared experts"] == 58 * 3 * 7168 * 2048
    assert parts["router"] == 58 * 256 * 7168
    assert parts["feed-forward"] == 3 * 3 * 7168 * 18432
    latents = 1536 + 512
    assert parts["norms"] == 61 * (2 * 7168 + latents) + 7168
    # 187,107,328 an attention with its two norms.
    assert parts["attention"] == 61 * (187_107_328 - latents)
    assert by_part(node, "n_active")["experts"] == parts["experts"] * 8 // 256
    # Balancing biases, loads, and two coefficients that members may differ in.
    assert node["n_state"] == 58 * (2 * 256 + 2)


def test_kept_keys_and_values():
    """Llama 3.1 8B: 2 * 8 heads of 128 in 32 layers, 128 KiB in bfloat16."""
    cache = of_published("Llama-3-8B / 3.1-8B")["kv_cache"]
    assert cache["bytes_per_token"] == 2 * 8 * 128 * 32 * 2 == 128 * 1024
    assert cache["bytes_per_sequence"] == 64 * 128 * 1024
    # DeepSeek-V3 keeps the latent and one rope key: 576 numbers a layer.
    cache = of_published("DeepSeek-V3 (no MTP)")["kv_cache"]
    assert cache["bytes_per_token"] == 61 * 576 * 2


def test_a_window_keeps_no_more_than_it_sees():
    """Half of the layers of gpt-oss see 128 tokens."""
    node = of_published("gpt-oss-20b", 1024)
    layer = 2 * 8 * 64 * 2
    assert node["kv_cache"]["bytes_per_token"] == 24 * layer
    assert node["kv_cache"]["bytes_per_sequence"] == 12 * layer * (128 + 1024)
    per_key = 64 * (64 + 64)
    assert node["flops_per_token"]["attention"] == 2 * 12 * per_key * (128 + 1024)


def test_a_linear_attention_keeps_a_state_that_does_not_grow():
    """36 of the 48 layers of Qwen3-Next; 32 heads of 128 x 128, 3 tokens of 8192."""
    short, long = (of_published("Qwen3-Next-80B-A3B (no MTP)", n) for n in (64, 4096))
    state, before = 32 * 128 * 128, 3 * (2 * 16 * 128 + 32 * 128)
    softmax = 12 * 2 * 2 * 256
    for node, n in ((short, 64), (long, 4096)):
        cache = node["kv_cache"]
        assert cache["bytes_per_token"] == 2 * softmax
        assert cache["bytes_per_sequence"] == 2 * (softmax * n + 36 * (state + before))
        keys = 12 * 16 * 2 * 256 * n
        assert node["flops_per_token"]["attention"] == 2 * (keys + 36 * 3 * state)


def test_a_compressed_past_counts_by_its_entries():
    """DeepSeek-V4 small: layers with a window of 5; with an entry every 2 tokens, of
    which an indexer of 4 heads of 6 takes 2; with an entry every 4 tokens."""
    path = RELEASED / "deepseek_v4" / "config.json"
    config = json.loads(path.read_text())
    heads, width = config["num_attention_heads"], config["head_dim"]
    node = counted(f"model.from_config={path}", seq_len=16)
    kept = [width, width + (width + 6) / 2, width + width / 4]
    cache = node["kv_cache"]
    assert cache["bytes_per_token"] == 2 * sum(kept)
    entries = 8 * (width + 6) + 4 * width
    assert cache["bytes_per_sequence"] == 2 * (3 * 5 * width + entries)
    keys = heads * 2 * width * (3 * 5 + 2 + 4) + 4 * 6 * 8
    assert node["flops_per_token"]["attention"] == 2 * keys


def test_memory_of_training():
    node = counted("model=tiny", "data=markov")
    n = node["n_params"]
    sizes = {"parameters": 4 * n, "gradients": 4 * n, "adamw": 8 * n, "total": 16 * n}
    assert node["training_bytes"] == sizes


@pytest.mark.parametrize(
    "overrides",
    [
        pytest.param((), marks=pytest.mark.slow),
        ("model.tied_head=true", "ffn=swiglu", "model.n_kv_heads=1"),
        ("attention=mla", "model.attention.d_value=12", "ffn=geglu"),
    ],
)
def test_flops_are_those_of_the_traced_model(overrides):
    seq = 24
    lines = ["model=tiny", "model.vocab_size=11", *overrides]
    node = counted(*lines, seq_len=seq)
    (config,) = api.compose(lines)
    make = config.model.build(config.traced_values(), "model")
    model = nnx.eval_shape(lambda: make(rngs=nnx.Rngs(0)))
    graphdef, arrays = nnx.split(model)
    tokens = jax.ShapeDtypeStruct((2, seq), jnp.int32)
    traced = matmul_flops(lambda a, t: nnx.merge(graphdef, a)(t), arrays, tokens)
    assert node["flops_per_token"]["forward"] * 2 * seq == traced
    assert node["flops_per_token"]["training"] * 2 * seq == 3 * traced


ENCODED = {
    "bert_base": ("model.vocab_size=11", "model.max_len=24"),
    "t5_base_encoder": ("model.vocab_size=11",),
    "vit_b16": ("model.image_size=12", "model.patch_size=4", "model.n_classes=5"),
}


@pytest.mark.parametrize("name", ENCODED)
def test_flops_of_encoders_are_those_of_the_traced_model(name):
    """10 tokens divide every size, so that no share is rounded."""
    sizes = ("d_model=40", "n_layers=2", "n_heads=4", "d_ff=80")
    lines = [f"model={name}", *(f"model.{size}" for size in sizes), *ENCODED[name]]
    node = counted(*lines, seq_len=24 if name != "vit_b16" else 1000)
    seq = node["seq_len"]
    assert seq == (10 if name == "vit_b16" else 24)
    (config,) = api.compose(lines)
    make = config.model.build(config.traced_values(), "model")
    graphdef, arrays = nnx.split(nnx.eval_shape(lambda: make(rngs=nnx.Rngs(0))))
    tokens = jax.ShapeDtypeStruct((2, seq), jnp.int32)
    given = {
        "bert_base": (tokens, None, tokens),
        "vit_b16": (jax.ShapeDtypeStruct((2, 3, 12, 12), jnp.float32),),
    }.get(name, (tokens,))
    traced = matmul_flops(lambda a, *x: nnx.merge(graphdef, a)(*x), arrays, *given)
    assert node["flops_per_token"]["forward"] * 2 * seq == traced
    assert node["kv_cache"]["bytes_per_token"] == 0  # nothing comes one by one


def test_the_map_of_patches_is_part_of_the_embedding():
    parts = by_part(counted("model=vit_b16"))
    # 768 numbers of a patch, an offset, the summary token.
    assert parts["embedding"] == 768 * 768 + 2 * 768
    assert "residual" not in parts


def test_experts_count_by_the_share_a_token_meets():
    node = counted(
        "model=tiny", "model.vocab_size=11", "ffn=moe", "model.ffn.router.top_k=2"
    )
    parts, active = by_part(node), by_part(node, "n_active")
    assert active["experts"] == parts["experts"] * 2 // 8
    assert {p: n for p, n in active.items() if p != "experts"} == {
        p: n for p, n in parts.items() if p != "experts"
    }
    met = active["experts"] + parts["attention"] + parts["router"] + parts["head"]
    assert node["flops_per_token"]["weights"] == 2 * met


def test_every_parameter_has_a_part_and_other_models_are_counted_too():
    node = counted("model=residual_mlp", "residual=mhc")
    assert set(by_part(node)) == {"feed-forward", "norms", "residual"}
    assert node["kv_cache"]["bytes_per_token"] == 0
    node = counted("model=tiny", "data=markov", "placement=parallel")
    assert {"attention", "feed-forward"} <= set(by_part(node))


def test_parts_are_told_by_role_and_place():
    spec = lambda role: counting.ParamSpec(role, (1,))  # noqa: E731
    for path, role, part in (
        ("blocks/layers/attn/branch/sinks", "sink", "attention"),
        ("blocks/layers/attn/branch/q_norm/gain", "gain", "norms"),
        ("blocks/layers/attn_joint/post_norm/gain", "gain", "norms"),
        ("blocks/layers/attn_joint/scale", "scale", "residual"),
        ("blocks/layers/ffn/branch/router/bias", "bias", "router"),
        ("blocks/layers/ffn/branch/shared_gate", "router", "router"),
        ("blocks/layers/ffn/branch/shared/up/kernel", "matrix", "shared experts"),
        ("blocks/layers/ffn/branch/experts/up/bias", "bias", "experts"),
        ("embedding_positions/table", "position", "positions"),
        ("head/bias", "bias", "head"),
    ):
        assert counting.part_of(path, spec(role)) == part, path


def test_the_answer_is_printed_and_written(tmp_path):
    out = io.StringIO()
    (config,) = api.compose(
        [
            "task=count",
            f"model.from_config={RELEASED / 'gpt_oss'}",
            f"runtime.output_dir={tmp_path}",
        ]
    )
    assert api.run([config], console=Console(file=out, width=100)) == []
    path = tmp_path / "count" / "count.json"
    node = json.loads(path.read_text())
    assert [p.name for p in path.parent.iterdir()] == ["count.json"]
    assert node["schema"] == 1
    text = out.getvalue()
    assert f"{node['n_params']:,}" in text
    assert f"{node['n_active']:,}" in text
    assert "of one token" in text
    assert f"everything is in {path}" in text.replace("\n", " ")


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "count").write_text("")
    (config,) = api.compose(
        ["task=count", "model=tiny", "data=markov", f"runtime.output_dir={tmp_path}"]
    )
    with pytest.raises(UserError, match=r"count.json: cannot write there"):
        api.run([config], console=Console(file=io.StringIO()))


def test_an_unknown_dtype_of_the_cache_is_refused():
    with pytest.raises(UserError, match="task.cache_dtype must be one of .* got 'fp8'"):
        api.compose(["task=count", "task.cache_dtype=fp8"])
