"""model.from_config: a released model from its config.json, with parts swapped."""

import functools
import json
import pathlib

import pytest

from blocks.families.family import overrides_of
from blocks.families.fields import Fields
from experiments import api
from experiments.errors import ConfigError, UserError
from experiments.released import expanded

RELEASED = pathlib.Path(__file__).parents[1] / "golden" / "released"


def from_config(name):
    return f"model.from_config={RELEASED / name}"


@functools.cache
def model(*overrides):
    (config,) = api.compose(overrides)
    return config.model


def test_the_model_is_the_one_of_the_file():
    lines = overrides_of(Fields.read(RELEASED / "llama3"))
    assert model(from_config("llama3")) == model(*lines)
    assert model(f"{from_config('llama3')}/config.json") == model(*lines)


def test_a_value_wins_over_the_value_of_the_file_wherever_it_stands():
    first = model("model.norm.eps=0.25", from_config("llama3"))
    last = model(from_config("llama3"), "model.norm.eps=0.25")
    assert first == last
    assert first["norm"]["eps"] == 0.25
    assert first["d_model"] == 32


def test_a_choice_takes_the_values_of_the_part_it_replaces_with_it():
    made = model(from_config("llama3"), "norm=derf", "model.norm.alpha_init=0.3")
    assert made["norm"].name == "Derf"
    assert made["norm"]["alpha_init"] == 0.3
    assert made["attention"] == model(from_config("llama3"))["attention"]


def test_another_attention_keeps_the_positions_of_the_file():
    made = model(from_config("llama3"), "attention=gated")
    assert made["attention"]["gate"].name == "SigmoidGate"
    assert made["attention"]["positions"]["base"] == 500000.0
    assert made["ffn"] == model(from_config("llama3"))["ffn"]


def test_what_lies_in_a_replaced_part_goes_with_it():
    """The norm of q and k is the attention's; the file's would find no place."""
    made = model(from_config("qwen3"), "attention=gqa")
    assert made["attention"]["qk_norm"] is None
    made = model(from_config("gemma3"), "~pattern")
    assert made["pattern"] is None
    assert made["attention"]["window"] == 5


def test_the_parts_of_a_pattern_can_be_replaced_one_by_one():
    made = model(from_config("gemma3"), "+attention@model.pattern.attention=gqa")
    inside = made["pattern"]["attention"]
    assert inside["qk_norm"] is None
    assert inside["positions"] is None  # they were put into the part that is gone
    assert made["attention"]["qk_norm"] is not None


def test_a_sweep_swaps_parts_of_the_file():
    configs = api.compose([from_config("llama3"), "norm=rmsnorm,derf", "seed=0,1"])
    assert [c.model["norm"].name for c in configs] == ["RMSNorm"] * 2 + ["Derf"] * 2
    assert {c.model["d_ff"] for c in configs} == {48}


def test_a_sweep_over_files():
    configs = api.compose([f"{from_config('llama3')},{RELEASED / 'gpt2'}"])
    assert [c.model["tied_head"] for c in configs] == [False, True]


@pytest.mark.parametrize(
    "name, choice",
    [("llama3_8b", "derf"), ("bert_base", "dyt"), ("mistral_7b", "none")],
)
def test_a_model_by_name_gives_up_what_another_part_does_not_have(name, choice):
    made = model(f"model={name}", f"norm={choice}")
    plain = model(f"model={name}")
    assert made["attention"] == plain["attention"]
    assert "eps" in dict(plain["norm"].keywords)
    assert "eps" not in dict(made["norm"].keywords)


def test_a_model_by_name_keeps_what_another_part_has_too():
    assert model("model=llama3_8b", "norm=layernorm")["norm"]["eps"] == 1e-5
    made = model("model=llama3_8b", "attention=gated")
    assert made["attention"]["positions"]["base"] == 500000.0


def test_what_somebody_typed_is_refused_and_not_dropped():
    with pytest.raises(ConfigError, match="model.norm.eps: Derf has no such keyword"):
        api.compose(["model=llama3_8b", "norm=derf", "model.norm.eps=1e-5"])
    with pytest.raises(UserError, match="model.norm.epsilon"):
        api.compose(["model=llama3_8b", "model.norm.epsilon=1e-5"])


def test_without_the_key_nothing_changes():
    assert expanded(["norm=derf", "seed=1"]) == ["norm=derf", "seed=1"]


def test_a_path_may_be_quoted(tmp_path):
    path = tmp_path / "a b=c"
    path.mkdir()
    (path / "config.json").write_text((RELEASED / "gpt2/config.json").read_text())
    assert model(f"model.from_config='{path}'") == model(from_config("gpt2"))


@pytest.mark.parametrize(
    "change, told",
    [
        ({"model_type": "lama"}, "model_type: expected one of .* did you mean llama"),
        ({"new_trick": 1}, "may change what it computes: new_trick"),
        ({"hidden_act": "gelu"}, 'hidden_act: expected "silu", got "gelu"'),
    ],
)
def test_a_file_that_is_not_understood_is_refused(tmp_path, change, told):
    node = json.loads((RELEASED / "llama3/config.json").read_text())
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**node, **change}))
    with pytest.raises(ConfigError, match=f"^model.from_config: {path}: .*{told}"):
        api.compose([f"model.from_config={path}"])


def test_no_file_and_two_files_are_refused(tmp_path):
    with pytest.raises(UserError, match="x.json: expected a config.json, No such file"):
        api.compose([f"model.from_config={tmp_path}/x.json"])
    with pytest.raises(UserError, match="expected one file, got 2"):
        expanded([from_config("gpt2"), from_config("llama3")])


def test_a_size_that_the_file_has_wrong_is_named(tmp_path):
    node = json.loads((RELEASED / "llama3/config.json").read_text())
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**node, "num_key_value_heads": 3}))
    with pytest.raises(UserError, match="n_heads=4 is not divisible by n_kv_heads=3"):
        api.compose([f"model.from_config={path}"])
