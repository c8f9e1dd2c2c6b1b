"""A config.json is understood field by field, or refused by name."""

import copy
import json
import pathlib

import pytest

from blocks.families.family import families, family_of, overrides_of
from blocks.families.fields import FamilyError, Fields
from blocks.families.parts import in_pattern, layers, part, place_of

RELEASED = pathlib.Path(__file__).parents[2] / "golden" / "released"
FOLDERS = sorted(p.parent.name for p in RELEASED.glob("*/config.json"))
# Encoders; their attention and where it knows positions from are those of their model.
ENCODERS = ("bert", "t5_encoder", "t5v1_1_encoder", "vit")
WITHOUT_ROTATIONS = ("gpt2", *ENCODERS)
TABLES = (
    "embed_tokens.weight",
    "wte.weight",
    "word_embeddings.weight",
    "shared.weight",
)


def config(name, **changes):
    return {**json.loads((RELEASED / name / "config.json").read_text()), **changes}


def made(name, **changes):
    return overrides_of(Fields(config(name, **changes)))


def test_families_are_the_files_of_the_folder():
    folder = pathlib.Path(__file__).parents[3] / "blocks" / "families"
    files = [p.stem for p in folder.glob("*.py") if "FAMILY = " in p.read_text()]
    modules = {f.overrides.__module__.rsplit(".", 1)[-1] for f in families().values()}
    assert modules == set(files)
    assert len(files) >= 7


def test_every_model_type_has_one_family():
    listed = [kind for f in set(families().values()) for kind in f.model_types]
    assert len(listed) == len(set(listed)) == len(families())


@pytest.mark.parametrize("name", FOLDERS)
def test_every_golden_config_is_understood(name):
    lines = made(name)
    keys = [line.partition("=")[0] for line in lines]
    assert len(keys) == len(set(keys)), "a key is set once"
    parts = {"norm", "ffn"}
    if name not in ENCODERS:
        parts |= {"placement", "attention", "positions"}
    assert parts <= set(keys)


def test_an_unknown_model_type_gets_the_nearest_known():
    with pytest.raises(
        FamilyError, match=r"model_type: .* got lama; did you mean llama"
    ):
        made("llama3", model_type="lama")
    with pytest.raises(FamilyError, match="model_type: expected one of .* got None"):
        overrides_of(Fields({"hidden_size": 3}))


def test_an_unknown_field_is_refused_by_name_with_the_nearest_known():
    with pytest.raises(
        FamilyError, match=r"rms_norm_esp \(did you mean rms_norm_eps\?\)"
    ):
        made("llama3", rms_norm_esp=1e-5)
    with pytest.raises(FamilyError, match="model_type llama .*: a_new_trick, zebra"):
        made("llama3", zebra=1, a_new_trick=True)


@pytest.mark.parametrize("name", FOLDERS)
def test_a_field_of_any_other_family_is_not_passed_over(name):
    """Whatever a family does not list is refused, not only invented names."""
    with pytest.raises(FamilyError, match="may change what it computes: alibi_slopes"):
        made(name, alibi_slopes=True)


@pytest.mark.parametrize(
    "name, changes, told",
    [
        ("llama3", {"hidden_act": "gelu"}, 'hidden_act: expected "silu", got "gelu"'),
        ("llama3", {"hidden_size": "32"}, "hidden_size: expected a whole number"),
        ("llama3", {"hidden_size": True}, "hidden_size: expected a whole number"),
        ("llama3", {"rope_parameters": 3}, "rope_parameters: expected numbers by name"),
        (
            "llama3",
            {"rope_parameters": {"rope_type": "longrope"}},
            'rope_type: expected default, linear, llama3 or yarn, got "longrope"',
        ),
        (
            "llama3",
            {"rope_parameters": {"rope_type": "linear"}},
            "rope_parameters of type linear: factor is missing",
        ),
        (
            "llama3",
            {"rope_parameters": {"partial_rotary_factor": 0.5}},
            "rope_parameters of type default: unknown partial_rotary_factor",
        ),
        ("llama3", {"is_encoder_decoder": True}, "is_encoder_decoder: expected false"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "expected false, got true"),
        ("gpt2", {"activation_function": "silu"}, "activation_function: expected"),
        ("gemma", {"hidden_act": "gelu"}, "hidden_act: expected"),
        ("gemma2", {"query_pre_attn_scalar": "x"}, "expected a number above 0"),
        ("gemma2", {"layer_types": "full_attention"}, "layer_types: expected a list"),
        ("gemma2", {"layer_types": ["chunked_attention"] * 3}, "layer_types: expected"),
        ("gemma3", {"use_bidirectional_attention": True}, "expected false or null"),
        (
            "olmo3",
            {"rope_parameters": {"rope_type": "yarn", "factor": 8.0}},
            "rope_parameters: expected one entry for",
        ),
        ("qwen3", {"layer_types": ["sliding_attention"] * 3}, "without use_sliding"),
        ("qwen3_moe", {"use_sliding_window": True}, "use_sliding_window: expected"),
        ("deepseek_v3", {"scoring_func": "softmax"}, "scoring_func: expected"),
        ("deepseek_v2", {"topk_method": "noaux_tc"}, "topk_method: expected"),
        ("llama4", {"layer_types": ["full_attention"] * 3}, "layer_types: expected"),
    ],
)
def test_a_value_that_means_another_computation_is_refused(name, changes, told):
    with pytest.raises(FamilyError) as error:
        made(name, **changes)
    assert told in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("field", ["vocab_size", "hidden_size", "num_hidden_layers"])
def test_a_missing_size_is_named(field):
    node = config("llama3")
    del node[field]
    with pytest.raises(FamilyError, match=f"config.json: {field} is missing"):
        overrides_of(Fields(node))


def older(node):
    """The config as transformers 4 wrote it: two fields for rotations."""
    node = copy.deepcopy(node)
    given = node.pop("rope_parameters")
    if "partial_rotary_factor" in given:
        node["partial_rotary_factor"] = given.pop("partial_rotary_factor")
    if "compress" in given:
        theta, given = given["main"]["rope_theta"], given["compress"]
        node["compress_rope_theta"] = given["rope_theta"]
        given["rope_theta"] = theta
        del given["partial_rotary_factor"]
    if "full_attention" in given:
        if node["model_type"] == "gemma3_text":
            local = given["sliding_attention"]["rope_theta"]
            node["rope_local_base_freq"] = local
        given = given["full_attention"]
    node["rope_theta"] = given.pop("rope_theta")
    kind = given.pop("rope_type")
    node["rope_scaling"] = None if kind == "default" else {"type": kind, **given}
    return node


@pytest.mark.parametrize("name", [n for n in FOLDERS if n not in WITHOUT_ROTATIONS])
def test_older_configs_mean_the_same(name):
    assert overrides_of(Fields(older(config(name)))) == made(name)


def test_what_transformers_takes_without_a_field_is_taken():
    """Published configs leave out what is at its default."""
    node = config("gpt2", n_inner=None)
    for field in ("scale_attn_weights", "layer_norm_epsilon", "activation_function"):
        del node[field]
    lines = overrides_of(Fields(node))
    assert "model.d_ff=128" in lines  # 4 n_embd
    assert "model.norm.eps=1e-05" in lines
    node = config("llama3")
    del node["num_key_value_heads"], node["head_dim"], node["attention_bias"]
    lines = overrides_of(Fields(node))
    assert {"model.n_kv_heads=null", "model.d_head=null"} <= set(lines)
    assert "model.attention.bias=false" in lines


def test_reading_a_config_from_disk(tmp_path):
    assert overrides_of(Fields.read(RELEASED / "llama3")) == made("llama3")
    with pytest.raises(
        FamilyError, match="config.json: expected a config.json, No such"
    ):
        Fields.read(tmp_path)
    for text, told in (("{", "not a JSON file"), ("[1]", "expected an object")):
        path = tmp_path / "config.json"
        path.write_text(text)
        with pytest.raises(FamilyError, match=told):
            Fields.read(path)


def label(kinds):
    """What `layers` makes of kinds written as letters."""
    make = lambda kind: {"ffn": part("ffn", kind)}  # noqa: E731
    return layers(list(kinds), make)


@pytest.mark.parametrize(
    "kinds, expected",
    [
        ("aaa", ["ffn=a"]),
        ("aab", ["ffn=a", "pattern=every_nth", "model.pattern.every=3"]),
        ("abab", ["ffn=a", "pattern=every_nth", "model.pattern.every=2"]),
        ("ababa", ["ffn=a", "pattern=every_nth", "model.pattern.every=2"]),
        ("baaa", ["ffn=a", "pattern=first", "model.pattern.at_least=1"]),
        ("bbaa", ["ffn=a", "pattern=first", "model.pattern.at_least=2"]),
        ("aabaabaa", ["ffn=a", "pattern=every_nth", "model.pattern.every=3"]),
    ],
)
def test_layers_of_two_kinds_become_a_pattern(kinds, expected):
    inside = ["+ffn@model.pattern.ffn=b"] if "b" in kinds else []
    assert label(kinds) == [*expected, *inside]


@pytest.mark.parametrize(
    "kinds, listed", [("abba", "1,2"), ("aabba", "2,3"), ("babb", "1")]
)
def test_layers_of_no_regular_pattern_are_listed(kinds, listed):
    usual, other = ("b", "a") if kinds == "babb" else ("a", "b")
    assert label(kinds) == [
        f"ffn={usual}",
        "pattern=listed",
        f"model.pattern.ffn_in=[{listed}]",
        f"+ffn@model.pattern.ffn={other}",
    ]


def test_parts_that_change_at_a_pace_of_their_own_are_listed_one_by_one():
    make = lambda kind: {  # noqa: E731
        "attention": part("attention", kind[0]),
        "ffn": part("ffn", kind[1]),
    }
    lines = layers([("l", "d"), ("f", "m"), ("l", "m")], make)
    assert lines == [
        "attention=l",
        "ffn=m",
        "pattern=listed",
        "model.pattern.attention_in=[1]",
        "model.pattern.ffn_in=[0]",
        "+attention@model.pattern.attention=f",
        "+ffn@model.pattern.ffn=d",
    ]


def test_a_third_kind_of_one_part_is_in_a_pattern_beside():
    assert label("abacac") == [
        "ffn=a",
        "pattern=listed",
        "model.pattern.ffn_in=[3,5]",
        "+ffn@model.pattern.ffn=c",
        "+pattern@model.pattern.beside=listed",
        "model.pattern.beside.ffn_in=[1]",
        "+ffn@model.pattern.beside.ffn=b",
    ]


def test_parts_that_are_alike_are_not_in_the_pattern():
    make = lambda kind: {  # noqa: E731
        "attention": part("attention", "gqa"),
        "ffn": part("ffn", kind),
    }
    lines = layers(["a", "b"], make)
    assert not any("pattern.attention" in line for line in lines)
    assert "+ffn@model.pattern.ffn=b" in lines


def test_a_pattern_has_its_parts_at_places_of_its_own():
    lines = [
        *part("attention", "qwen3", window=3),
        "norm@model.attention.qk_norm=rmsnorm",
        *part("positions", "rope", base=5.0, scaling__factor=2),
    ]
    assert in_pattern(lines) == [
        "+attention@model.pattern.attention=qwen3",
        "model.pattern.attention.window=3",
        "norm@model.pattern.attention.qk_norm=rmsnorm",
        "+positions@model.pattern.attention.positions=rope",
        "model.pattern.attention.positions.base=5.0",
        "model.pattern.attention.positions.scaling.factor=2",
    ]
    assert in_pattern(["positions=none"]) == []
    assert place_of("+norm@model.x=y") == "model.x"
    assert place_of("model.norm.eps=1") is None


def test_the_scale_of_deepseek_v3_is_the_published_one():
    """192^-0.5 times (0.1 ln 40 + 1)^2 = 1.8738."""
    rope = {"type": "yarn", "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0}
    rope |= {"original_max_position_embeddings": 4096, "beta_fast": 32, "beta_slow": 1}
    node = config("deepseek_v3", rope_scaling=rope, rope_theta=1e4)
    del node["rope_parameters"]
    node |= {"qk_nope_head_dim": 128, "qk_rope_head_dim": 64}
    lines = dict(line.split("=", 1) for line in overrides_of(Fields(node)))
    scale = float(lines["model.attention.scale"])
    assert scale * 192**0.5 == pytest.approx(1.8738, abs=1e-4)


def published(**changes):
    """The fields of DeepSeek-V4-Flash as its published config has them."""
    node = {
        "model_type": "deepseek_v4",
        "vocab_size": 129280,
        "hidden_size": 4096,
        "num_hidden_layers": 6,
        "num_attention_heads": 64,
        "qk_rope_head_dim": 64,
        "compress_ratios": [0, 0, 4, 128, 4, 128, 0],  # the last of a layer left out
        "num_hash_layers": 3,
        "rope_scaling": {
            "type": "yarn",
            "factor": 16,
            "original_max_position_embeddings": 65536,
            "beta_fast": 32,
            "beta_slow": 1,
        },
    }
    return Fields({**node, **changes})


def test_layers_of_deepseek_v4_as_published():
    lines = overrides_of(published())
    assert "attention=deepseek_v4" in lines  # of three kinds with two layers the first
    assert "model.pattern.attention_in=[2,4]" in lines
    assert "model.pattern.beside.attention_in=[3,5]" in lines
    assert "model.attention.d_rope=64" in lines
    slow = {
        "model.pattern.attention.positions.base=160000.0",
        "model.pattern.attention.positions.scaling.factor=16",
        "model.pattern.attention.positions.scaling.attention_factor=1.0",
        "model.attention.positions.base=10000.0",
    }
    assert slow <= set(lines)
    kinds = ["sliding_attention"] * 2
    kinds += ["compressed_sparse_attention", "heavily_compressed_attention"] * 2
    assert overrides_of(published(layer_types=kinds, compress_ratios=None)) == lines


def test_deepseek_v4_without_lists_of_layers():
    lines = overrides_of(published(compress_ratios=None, num_hash_layers=1))
    assert "attention=deepseek_v4_heavy" in lines
    assert "model.pattern.attention_in=[3,5]" in lines
    assert "model.pattern.ffn_in=[0]" in lines


@pytest.mark.parametrize(
    "change, told",
    [
        ({"compress_ratios": [0, 7, 4, 4, 4, 4]}, "compress_ratios: expected 6 of"),
        ({"layer_types": ["full_attention"] * 6}, "layer_types: expected 6 of sliding"),
        ({"mlp_layer_types": ["moe"] * 5}, "mlp_layer_types: expected 6 of hash_moe"),
        ({"compress_rates": {"x": 4}}, "compress_rates: expected a whole number for"),
        ({"scoring_func": "softmax"}, 'scoring_func: expected "sqrtsoftplus"'),
        ({"num_key_value_heads": 2}, "num_key_value_heads: expected 1, got 2"),
        ({"rope_parameters": {"main": {}}}, "rope_parameters: expected one entry for"),
        ({"partial_rotary_factor": 0.5}, "qk_rope_head_dim: expected 256"),
        ({"index_share": True}, "not known to have, .*: index_share"),
    ],
)
def test_what_deepseek_v4_does_not_compute_is_refused(change, told):
    with pytest.raises(FamilyError, match=told):
        overrides_of(published(**change))


def test_the_family_says_which_names_it_has():
    for name in set(FOLDERS) - {"vit"}:  # which has no words
        fields = Fields(config(name))
        table = family_of(fields).names(fields).transformers
        assert table["table"].name.endswith(TABLES)
