"""Reading checkpoints, refusing those that do not fit, and writing them again."""

import json
import types

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from blocks.families import tensors, weights
from blocks.families.fields import FamilyError
from blocks.families.files import INDEX, Files

# Families of which each moves numbers in a way of its own.
QUICK = ("gpt2", "gpt_oss", "deepseek_v3", "llama4")
REST = ("deepseek_v2", "gemma3", "kimi_k2", "llama2", "llama3", "llama3_1", "mistral")
REST += ("gemma", "gemma2", "minimind", "minimind_moe", "olmo2", "olmo3", "qwen2")
REST += ("qwen3", "qwen3_moe", "qwen3_next", "vit", "bert", "t5_encoder")
REST += ("deepseek_v4",)
HUB = ("deepseek_v3", "qwen3_moe", "deepseek_v2", "kimi_k2", "minimind_moe")
HUB += ("qwen3_next", "vit", "deepseek_v4")


def quick(families, n):
    return [
        *families[:n],
        *(pytest.param(f, marks=pytest.mark.slow) for f in families[n:]),
    ]


def load(of, source=None, **keywords):
    return weights.load(source or of.file, of.fields, of.layout, **keywords)


def same(actual, expected):
    assert actual.keys() == expected.keys()
    for name, x in expected.items():
        np.testing.assert_array_equal(actual[name], x, err_msg=name, strict=True)


@pytest.mark.parametrize("family", quick((*QUICK, *REST), len(QUICK)))
def test_a_checkpoint_that_is_read_and_written_is_the_same(
    checkpoint, family, tmp_path
):
    of = checkpoint(family)
    params, state = load(of)
    weights.save(tmp_path / "x.safetensors", params, state, of.fields, of.layout)
    same(load_file(tmp_path / "x.safetensors"), load_file(of.file))
    assert [p.name for p in tmp_path.iterdir()] == ["x.safetensors"]


@pytest.mark.parametrize("family", quick(HUB, 2))
def test_names_of_published_files_hold_the_same_parameters(checkpoint, family):
    of = checkpoint(family)
    for actual, expected in zip(load(of, of.hub), load(of), strict=True):
        same(actual, expected)


def test_gpt2_is_published_without_its_prefix_and_with_masks(checkpoint, tmp_path):
    of = checkpoint("gpt2")
    found = {
        name.removeprefix("transformer."): x for name, x in load_file(of.file).items()
    }
    found["h.0.attn.bias"] = np.tril(np.ones((1, 1, 16, 16), np.float32))
    save_file(found, tmp_path / "model.safetensors")
    same(load(of, tmp_path)[0], load(of)[0])


def test_the_balancing_bias_is_state(checkpoint):
    of = checkpoint("deepseek_v3")
    params, state = load(of)
    (path,) = state
    assert path.endswith("router/balance_bias")
    assert params.keys() == of.layout.specs.keys()
    assert np.ptp(state[path]) > 0


def split(file, folder, n=3):
    """A checkpoint in n files with an index, as large ones are published."""
    found = load_file(file)
    weight_map = {}
    for k in range(n):
        part = dict(list(found.items())[k::n])
        name = f"model-{k + 1:05}-of-{n:05}.safetensors"
        save_file(part, folder / name)
        weight_map |= dict.fromkeys(part, name)
    text = json.dumps({"metadata": {}, "weight_map": weight_map})
    (folder / INDEX).write_text(text)
    return sorted(folder.glob("*.safetensors"))


def test_one_file_several_and_an_index_are_the_same_checkpoint(checkpoint, tmp_path):
    of = checkpoint("llama3")
    expected = load(of)[0]
    files = split(of.file, tmp_path)
    same(load(of, tmp_path)[0], expected)
    same(load(of, files)[0], expected)
    (tmp_path / "one").mkdir()
    of.copy(tmp_path / "one")
    same(load(of, tmp_path / "one")[0], expected)


def test_a_tensor_is_read_once(checkpoint, monkeypatch):
    of = checkpoint("gpt_oss")
    read = []
    original = Files.read
    monkeypatch.setattr(
        Files, "read", lambda self, n: read.append(n) or original(self, n)
    )
    load(of)
    with safe_open(of.file, "np") as file:
        assert sorted(read) == sorted(file.keys())


@pytest.mark.parametrize("dtype", [jnp.bfloat16, np.float16, np.float64])
def test_parameters_have_the_dtype_asked_for(checkpoint, dtype):
    of = checkpoint("llama3")
    wanted, found = load(of)[0], load(of, dtype=dtype)[0]
    for path, x in found.items():
        assert x.dtype == dtype
        np.testing.assert_array_equal(x, wanted[path].astype(dtype))


def test_bfloat16_files_are_read_to_the_last_bit(checkpoint, tmp_path):
    of = checkpoint("llama3")
    rounded = {k: x.astype(jnp.bfloat16) for k, x in load_file(of.file).items()}
    save_file(rounded, tmp_path / "model.safetensors")
    for path, x in load(of, tmp_path)[0].items():
        assert x.dtype == np.float32
        wanted = load(of)[0][path].astype(jnp.bfloat16).astype(np.float32)
        np.testing.assert_array_equal(x, wanted)


def test_everything_that_does_not_fit_is_named_at_once(checkpoint, tmp_path):
    of = checkpoint("llama3")
    found = load_file(of.file)
    del found["model.norm.weight"], found["model.layers.2.mlp.up_proj.weight"]
    found["model.layers.0.input_layernorm.weight"] = np.ones(1, np.float32)
    found["model.layers.3.input_layernorm.weight"] = np.ones(32, np.float32)
    save_file(found, tmp_path / "model.safetensors")
    with pytest.raises(FamilyError) as error:
        load(of, tmp_path)
    text = str(error.value)
    assert "missing: model.layers.2.mlp.up_proj.weight, model.norm.weight;" in text
    wrong = "model.layers.0.input_layernorm.weight (expected [32], got [1])"
    assert f"of another shape: {wrong};" in text
    assert text.endswith("of no use: model.layers.3.input_layernorm.weight")


def test_a_transposed_kernel_is_refused(checkpoint, tmp_path):
    of = checkpoint("llama3")
    found = load_file(of.file)
    name = "model.layers.1.mlp.up_proj.weight"
    found[name] = np.ascontiguousarray(found[name].T)
    save_file(found, tmp_path / "model.safetensors")
    with pytest.raises(FamilyError, match=r"expected \[48, 32\], got \[32, 48\]"):
        load(of, tmp_path)


def test_a_long_list_is_cut(checkpoint, tmp_path):
    of = checkpoint("llama3")
    save_file({"x": np.ones(1, np.float32)}, tmp_path / "model.safetensors")
    with pytest.raises(FamilyError, match=r"and \d+ more; of no use: x$"):
        load(of, tmp_path)


def test_a_tied_head_may_be_stored_but_not_another_one(checkpoint, tmp_path):
    of = checkpoint("gemma2")
    found = load_file(of.file)
    found["lm_head.weight"] = found["model.embed_tokens.weight"].copy()
    save_file(found, tmp_path / "model.safetensors")
    same(load(of, tmp_path)[0], load(of)[0])
    found["lm_head.weight"][3, 5] += 1
    save_file(found, tmp_path / "model.safetensors")
    with pytest.raises(FamilyError, match="of no use: lm_head.weight"):
        load(of, tmp_path)


def test_layers_that_predict_further_tokens_are_left_out(checkpoint, tmp_path):
    of = checkpoint("deepseek_v3")
    found = load_file(of.file)
    found["model.layers.3.eh_proj.weight"] = np.ones((2, 2), np.float32)
    save_file(found, tmp_path / "model.safetensors")
    same(load(of, tmp_path)[0], load(of)[0])


def test_a_model_with_another_part_does_not_take_the_checkpoint(checkpoint):
    of = checkpoint("llama3", "attention=gated")
    with pytest.raises(FamilyError) as error:
        load(of)
    assert "the model is not the one of the config" in str(error.value)
    assert "attn/branch/gate/" in str(error.value)
    of = checkpoint("llama3", "model.n_layers=4")
    with pytest.raises(FamilyError, match=r"missing: model.layers.3.input_layernorm"):
        load(of)


def test_files_that_are_none_are_named(checkpoint, tmp_path):
    of = checkpoint("llama3")
    with pytest.raises(
        FamilyError, match="expected model.safetensors or model.safeten"
    ):
        load(of, tmp_path)
    with pytest.raises(FamilyError, match="nowhere: not a safetensors file"):
        load(of, tmp_path / "nowhere")
    broken = tmp_path / "model.safetensors"
    broken.write_bytes(b"\x08\0\0\0\0\0\0\0{}")
    with pytest.raises(FamilyError, match="model.safetensors: not a safetensors file"):
        load(of, broken)
    (tmp_path / INDEX).write_text("{}")
    with pytest.raises(FamilyError, match="index.json: expected a weight_map"):
        load(of, tmp_path)


@pytest.mark.parametrize(
    "entry, shape",
    [
        (tensors.From("x"), (3,)),
        (tensors.linear("x"), (4, 6)),
        (tensors.linear("x"), (2, 4, 6)),
        (tensors.share("x", 1, 3), (4, 6)),
        (tensors.linear_share("x", 1, 2), (5, 4, 6)),
        (tensors.every("x", 1, 2), (5, 4, 6)),
        (tensors.rows("x", 2, 5, 7), (4, 3)),
        (tensors.head_rows("x", 2, 5, 7), (4, 3 * 2)),
        (tensors.taps("x", 2, 5, 7), (4, 3)),
        (tensors.group_rows("x", 3), (3, 4, 2)),
        (tensors.stream_map("x", 2), (2, 3, 8)),
        (tensors.stream_map("x", 2), (2, 3, 2)),
        (tensors.stream_bias("x", 3), (15,)),
    ],
)
def test_shape_and_take_agree(entry, shape):
    tensor = np.arange(np.prod(entry.shape(shape))).reshape(entry.shape(shape))
    taken = entry.take(tensor)
    assert taken.shape == shape
    assert len(np.unique(taken)) == taken.size


@pytest.mark.parametrize("strip", [1, 100, 10**6])
def test_strips_cover_an_array_once_in_the_order_of_its_memory(monkeypatch, strip):
    monkeypatch.setattr(weights, "STRIP", strip)
    whole = np.arange(4 * 5 * 6, dtype=np.int32).reshape(4, 5, 6)
    for x in (whole, np.swapaxes(whole, 0, 2), whole[0, 0], whole[1, 2, 3]):
        strips = [np.ravel(x[part]) for part in weights.strips(x)]
        assert sorted(np.concatenate(strips)) == sorted(np.ravel(x))
        firsts = [strip.min() for strip in strips]
        assert firsts == sorted(firsts)
        assert len(strips) == 1 if strip == 10**6 else x.nbytes < 100 or len(strips) > 1


def test_a_changed_model_is_told_what_it_takes_and_what_not(checkpoint, tmp_path):
    of = checkpoint("llama3")
    found = load_file(of.file)
    del found["model.norm.weight"], found["model.layers.2.mlp.up_proj.weight"]
    found["model.layers.0.input_layernorm.weight"] = np.ones(1, np.float32)
    found["model.layers.3.input_layernorm.weight"] = np.ones(32, np.float32)
    save_file(found, tmp_path / "model.safetensors")
    fit = weights.fit(tmp_path, of.fields, of.layout)
    assert fit.fresh == ["final_norm/gain"]
    up, gain = "blocks/layers/ffn/branch/up/kernel", "blocks/layers/attn/in_norm/gain"
    assert fit.gaps == {gain: [(0,)], up: [(2,)]}
    left = [f"model.layers.{i}.input_layernorm.weight" for i in (0, 3)]
    assert fit.left == left
    params, wanted = fit.read(np.float32)[0], load(of)[0]
    assert params.keys() == wanted.keys() - {"final_norm/gain"}
    np.testing.assert_array_equal(params[up][:2], wanted[up][:2])


def test_heads_are_taken_apart_row_by_row():
    """Two heads of [nope 2 | value 1], latent of 2: the value rows are 2 and 5."""
    tensor = np.arange(12).reshape(6, 2)
    value = tensors.head_rows("x", 2, 3, 3).take(tensor)
    np.testing.assert_array_equal(value, tensor[[2, 5]].T)


def test_what_streams_take_from_each_other_is_turned_around():
    """Rows pre 0 1, post 2 3, comb 4 .. 7: comb[0, 1] is what stream 1 takes from 0."""
    names = np.arange(8)
    expected = [0, 1, 2, 3, 4, 6, 5, 7]
    np.testing.assert_array_equal(tensors.stream_bias("x", 2).take(names), expected)
    phi = tensors.stream_map("x", 2).take(np.stack([names, names + 8], axis=1))
    np.testing.assert_array_equal(phi[:, 0], [expected, np.array(expected) + 8])


def test_a_table_of_experts_is_exact_whatever_the_parameters_are(checkpoint):
    of = checkpoint("deepseek_v4")
    stored = load_file(of.file)["model.layers.0.mlp.gate.tid2eid"]
    state = load(of, dtype=jnp.bfloat16)[1]
    (path,) = (p for p in state if p.endswith("router/table"))
    assert state[path].dtype == np.uint32
    np.testing.assert_array_equal(state[path][0], stored)
    biases = [x for p, x in state.items() if p.endswith("balance_bias")]
    assert len(biases) == 2
    assert all(x.dtype == np.float32 for x in biases)
    of_file = load_file(of.file)["model.layers.1.mlp.gate.e_score_correction_bias"]
    assert any((x[0] == of_file).all() for x in biases)


def test_a_name_may_depend_on_the_kind_of_the_layer():
    entries = {"a": tensors.linear("x.{i}"), "b": tensors.From("y.{i}")}
    entry = tensors.PerLayer(("a", "b", "a"), entries)
    assert [entry.at(i).name for i in range(3)] == ["x.{i}", "y.{i}", "x.{i}"]
    assert entries["a"].at(None) is entries["a"]


@pytest.mark.parametrize(
    "kinds, expected",
    [
        ((jnp.bfloat16,), jnp.bfloat16),
        ((jnp.bfloat16, np.float32), np.float32),
        ((np.float16,), np.float32),  # of which bfloat16 would lose three bits
        ((jnp.bfloat16, np.uint8), jnp.bfloat16),  # packed experts of gpt-oss
        ((jnp.bfloat16, np.int64), jnp.bfloat16),  # a table of experts by token
    ],
)
def test_the_type_that_loses_nothing_is_that_of_the_floats(kinds, expected):
    files = types.SimpleNamespace(names=kinds, dtype=np.dtype)
    assert weights.stored_dtype(files) == np.dtype(expected)
