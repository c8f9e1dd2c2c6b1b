"""Blocks of 4-bit numbers: the formats by hand, and gpt-oss files that hold them."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file, save_file

from blocks.families import mxfp4, weights
from blocks.families.family import overrides_of
from blocks.families.fields import FamilyError, Fields
from blocks.families.files import Files
from blocks.parameters import layout_of
from experiments import api
from tests.blocks.families.conftest import RELEASED

# OCP Microscaling Formats (MX) 1.0, table 5: sign, exponent (bias 1), mantissa.
E2M1 = {
    "0000": 0.0,
    "0001": 0.5,
    "0010": 1.0,
    "0011": 1.5,
    "0100": 2.0,
    "0101": 3.0,
    "0110": 4.0,
    "0111": 6.0,
    "1000": -0.0,
    "1001": -0.5,
    "1010": -1.0,
    "1011": -1.5,
    "1100": -2.0,
    "1101": -3.0,
    "1110": -4.0,
    "1111": -6.0,
}


def by_hand(nibble, scale):
    """One number from its four bits and the byte of its block, as the formats say."""
    sign = -1.0 if nibble & 8 else 1.0
    exponent, mantissa = nibble >> 1 & 3, nibble & 1
    if exponent == 0:
        return sign * mantissa / 2 * 2.0 ** (scale - 127)
    return sign * (1 + mantissa / 2) * 2.0 ** (exponent - 1) * 2.0 ** (scale - 127)


def number_by_number(blocks, scales):
    """[experts, out, n, 16] bytes -> [experts, in, out]; the lower half comes first."""
    experts, out, n, _ = blocks.shape
    found = np.zeros((experts, 32 * n, out))
    for e in range(experts):
        for row in range(out):
            for b in range(n):
                for i, byte in enumerate(blocks[e, row, b]):
                    at, scale = 32 * b + 2 * i, int(scales[e, row, b])
                    found[e, at, row] = by_hand(int(byte) & 15, scale)
                    found[e, at + 1, row] = by_hand(int(byte) >> 4, scale)
    return found


def drawn(experts, out, n, seed=0):
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (experts, out, n, 16), np.uint8)
    # Near one, as in files: tokens through a layer of 2^100 would tell nothing.
    return blocks, rng.integers(118, 127, (experts, out, n), np.uint8)


def test_the_sixteen_numbers():
    for bits, value in E2M1.items():
        found = mxfp4.VALUES[int(bits, 2)]
        assert found == value == by_hand(int(bits, 2), 127)
        assert np.signbit(found) == np.signbit(value)
    assert len(mxfp4.VALUES) == 16


def test_scales_are_powers_of_two():
    """E8M0: 127 is one; 255 is no number."""
    assert len(mxfp4.FACTORS) == 256
    found = {n: float(mxfp4.FACTORS[n]) for n in (0, 1, 126, 127, 128, 254)}
    assert found == {
        0: 2.0**-127,
        1: 2.0**-126,
        126: 0.5,
        127: 1,
        128: 2,
        254: 2.0**127,
    }
    assert np.isnan(mxfp4.FACTORS[255])
    assert mxfp4.FACTORS.dtype == np.float32


def test_a_byte_holds_two_numbers_the_first_in_its_lower_half():
    blocks = np.zeros((1, 16), np.uint8)
    blocks[0, 0], blocks[0, 15] = 0x72, 0xF0  # 1 then 6; 0 then -6
    row = mxfp4.decoded(blocks, np.array([128], np.uint8))
    assert row.shape == (32,)
    np.testing.assert_array_equal(row[[0, 1, 30, 31]], [2.0, 12.0, 0.0, -12.0])


@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16])
def test_random_blocks_equal_the_formats_number_by_number(dtype):
    rng = np.random.default_rng(1)
    blocks = rng.integers(0, 256, (2, 5, 3, 16), np.uint8)
    scales = rng.integers(0, 253, (2, 5, 3), np.uint8)
    found = mxfp4.decoded(blocks, scales).swapaxes(-1, -2).astype(dtype)
    expected = number_by_number(blocks, scales)
    np.testing.assert_array_equal(found.astype(np.float64), expected)


# -- a checkpoint of gpt-oss -----------------------------------------------------------


class Packed:
    """gpt_oss of tests/golden with widths of whole blocks, its experts packed."""

    def __init__(self):
        node = json.loads((RELEASED / "gpt_oss" / "config.json").read_text())
        node |= {"hidden_size": 32, "intermediate_size": 64}
        node |= {"quantization_config": {"quant_method": "mxfp4"}}
        self.fields = Fields(node)
        (config,) = api.compose(overrides_of(self.fields))
        make = config.model.build(config.traced_values(), "model")
        self.layout = layout_of(lambda: make(rngs=nnx.Rngs(0)))
        rng = np.random.default_rng(5)
        # As published without blocks: all of it in bfloat16.
        self.plain, self.packed = {}, {}
        params = {
            path: rng.normal(size=spec.shape).astype(np.float32)
            for path, spec in self.layout.specs.items()
        }
        for name, x in weights.export(params, {}, self.fields, self.layout).items():
            if name.endswith(("gate_up_proj", "down_proj")):
                experts, d_in, out = x.shape
                blocks, scales = drawn(experts, out, d_in // 32, seed=len(self.packed))
                self.packed[f"{name}_blocks"] = blocks
                self.packed[f"{name}_scales"] = scales
                x = number_by_number(blocks, scales).astype(np.float32)
            else:
                self.packed[name] = x
            self.plain[name] = x

    def load(self, folder, tensors, **keywords):
        save_file(tensors, folder / "model.safetensors")
        return weights.load(folder, self.fields, self.layout, **keywords)[0]


@pytest.fixture(scope="module")
def gpt_oss():
    return Packed()


def test_a_packed_checkpoint_is_the_one_of_its_numbers(gpt_oss, tmp_path):
    found = gpt_oss.load(tmp_path, gpt_oss.packed)
    expected = gpt_oss.load(tmp_path, gpt_oss.plain)
    assert found.keys() == expected.keys()
    for path, x in expected.items():
        np.testing.assert_array_equal(found[path], x, err_msg=path, strict=True)
    written = weights.export(found, {}, gpt_oss.fields, gpt_oss.layout)
    assert written.keys() == gpt_oss.plain.keys()
    for name, x in gpt_oss.plain.items():
        np.testing.assert_array_equal(written[name], x, err_msg=name)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, np.float64])
def test_experts_have_the_dtype_asked_for_and_lose_nothing(gpt_oss, tmp_path, dtype):
    found = gpt_oss.load(tmp_path, gpt_oss.packed, dtype=dtype)
    wanted = gpt_oss.load(tmp_path, gpt_oss.plain)
    for path, x in found.items():
        assert x.dtype == dtype
        if "/experts/" in path and path.endswith("kernel"):
            np.testing.assert_array_equal(x.astype(np.float32), wanted[path])


def test_of_a_packed_tensor_one_expert_at_a_time_is_made(
    gpt_oss, tmp_path, monkeypatch
):
    made, original = [], mxfp4.decoded
    monkeypatch.setattr(
        mxfp4, "decoded", lambda b, s: made.append(b.shape) or original(b, s)
    )
    gpt_oss.load(tmp_path, gpt_oss.packed)
    n_layers, n_experts = 3, 4
    assert len(made) == 2 * n_layers * n_experts
    assert set(made) == {(128, 1, 16), (32, 2, 16)}


NAME = "model.layers.1.mlp.experts.down_proj"


@pytest.mark.parametrize(
    "half, change, told",
    [
        ("_blocks", lambda x: x.astype(np.int8), r"expected bytes \(uint8\), got int8"),
        ("_scales", lambda x: x.astype(np.float32), "expected bytes .*got float32"),
        (
            "_scales",
            lambda x: x[:, :-1].copy(),
            r"expected \[4, 32, 2\] .*\[4, 31, 2\]",
        ),
        (
            "_blocks",
            lambda x: x[..., :8].copy(),
            r"expected \[experts, out, .*, 2, 8\]",
        ),
        ("_blocks", lambda x: None, "expected .*down_proj_blocks beside it"),
        ("_scales", lambda x: None, "expected .*down_proj_scales beside it"),
    ],
)
def test_halves_that_do_not_fit_are_named(gpt_oss, tmp_path, half, change, told):
    tensors = dict(gpt_oss.packed)
    changed = change(tensors.pop(NAME + half))
    if changed is not None:
        tensors[NAME + half] = changed
    with pytest.raises(FamilyError, match=f"{NAME}.*{told}"):
        gpt_oss.load(tmp_path, tensors)


def test_experts_of_another_width_are_named(gpt_oss, tmp_path):
    blocks, scales = drawn(4, 32, 3)
    tensors = gpt_oss.packed | {f"{NAME}_blocks": blocks, f"{NAME}_scales": scales}
    with pytest.raises(FamilyError) as error:
        gpt_oss.load(tmp_path, tensors)
    assert f"another shape: {NAME}.0 (expected [64, 32], got [96, 32])" in str(
        error.value
    )


def test_a_missing_expert_is_named(gpt_oss, tmp_path):
    blocks, scales = (
        gpt_oss.packed[NAME + half][:3] for half in ("_blocks", "_scales")
    )
    tensors = gpt_oss.packed | {f"{NAME}_blocks": blocks, f"{NAME}_scales": scales}
    with pytest.raises(FamilyError, match=f"missing: {NAME}.3$"):
        gpt_oss.load(tmp_path, tensors)


def test_files_without_blocks_are_as_they_were(tmp_path):
    stored = load_file(RELEASED / "gpt_oss" / "weights.safetensors")
    files = mxfp4.Unpacked(Files(RELEASED / "gpt_oss" / "weights.safetensors"))
    assert files.names.keys() == stored.keys()
    for name, x in stored.items():
        assert (files.shape(name), files.dtype(name)) == (x.shape, x.dtype)
        np.testing.assert_array_equal(files.read(name), x)
