"""Kernels equal their twins, on any shape: in Pallas's interpreter, without a device."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from blocks.kernels.blend import blend, explicit
from blocks.kernels.tiles import TILES, tile


def operands(n_out, n_ins, tokens, width, dtype="float32", seed=0):
    rng = np.random.default_rng(seed)

    def normal(*shape, dtype):
        return jnp.asarray(rng.normal(size=shape), dtype)

    stacks = tuple(normal(n, tokens, width, dtype=dtype) for n in n_ins)
    weights = normal(n_out, sum(n_ins), tokens, dtype="float32")
    return weights, stacks, normal(n_out, tokens, width, dtype=dtype)


def by_einsum(weights, stacks, g):
    """The blend and its cotangents in float64 NumPy."""
    weights, g = np.asarray(weights, np.float64), np.asarray(g, np.float64)
    arrays = np.concatenate([np.asarray(s, np.float64) for s in stacks])
    y = np.einsum("ijt,jtd->itd", weights, arrays)
    d_weights = np.einsum("itd,jtd->ijt", g, arrays)
    d_arrays = np.einsum("ijt,itd->jtd", weights, g)
    ends = np.cumsum([len(s) for s in stacks])[:-1]
    return y, d_weights, np.split(d_arrays, ends)


def both_ways(fn, weights, stacks, g):
    y, pull = jax.vjp(fn, weights, stacks)
    return y, *pull(g)


def random_shapes(n, seed=0):
    """Tokens and widths that are whole tiles, and that are not; sizes of reads, writes."""
    rng = np.random.default_rng(seed)
    shapes = []
    for _ in range(n):
        streams = int(rng.integers(2, 6))
        n_out, n_ins = [(1, (streams,)), (streams, (streams, 1))][rng.integers(2)]
        tokens, width = int(rng.integers(1, 70)), int(rng.integers(1, 300))
        shapes.append((n_out, n_ins, tokens, width))
    return shapes


FEW = [(1, (4,), 32, 64), (3, (3, 1), 5, 33)]


def assert_equals_the_twin(platform, shape):
    given = operands(*shape)
    kernel = both_ways(lambda w, s: blend(w, s, platform), *given)
    y, d_weights, d_stacks = by_einsum(*given)
    scale = np.sqrt(sum(shape[1]))
    np.testing.assert_allclose(kernel[0], y, rtol=1e-5, atol=1e-5 * scale)
    atol = 1e-4 * np.sqrt(shape[3])
    np.testing.assert_allclose(kernel[1], d_weights, rtol=1e-4, atol=atol)
    for got, want in zip(kernel[2], d_stacks, strict=True):
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * scale)


@pytest.mark.parametrize("platform", TILES)
@pytest.mark.parametrize("shape", FEW, ids=str)
def test_kernel_equals_the_oracle_in_both_directions(platform, shape):
    assert_equals_the_twin(platform, shape)


@pytest.mark.slow
@pytest.mark.parametrize("platform", TILES)
@pytest.mark.parametrize("shape", random_shapes(6), ids=str)
def test_kernel_equals_the_oracle_on_random_shapes(platform, shape):
    assert_equals_the_twin(platform, shape)


def test_the_twin_equals_the_oracle():
    given = operands(4, (4, 1), 24, 48)
    y, d_weights, d_stacks = both_ways(explicit, *given)
    expected, d_expected, d_arrays = by_einsum(*given)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(d_weights, d_expected, rtol=1e-5, atol=1e-4)
    for got, want in zip(d_stacks, d_arrays, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("platform", TILES)
def test_bfloat16_is_summed_in_float32_and_rounded_once(platform):
    given = operands(2, (2, 1), 16, 32, "bfloat16")
    y, d_weights, d_stacks = both_ways(lambda w, s: blend(w, s, platform), *given)
    expected, d_expected, d_arrays = by_einsum(*given)
    assert (y.dtype, d_weights.dtype) == (jnp.bfloat16, jnp.float32)
    assert {d.dtype for d in d_stacks} == {jnp.dtype("bfloat16")}
    half = 1.01 * 2**-8
    np.testing.assert_allclose(np.float64(y), expected, rtol=half, atol=1e-6)
    np.testing.assert_allclose(d_weights, d_expected, rtol=1e-5, atol=1e-5)
    for got, want in zip(d_stacks, d_arrays, strict=True):
        np.testing.assert_allclose(np.float64(got), want, rtol=half, atol=1e-6)


def test_without_a_device_it_is_the_twin_to_the_bit():
    given = operands(3, (3, 1), 9, 20)
    for got, want in zip(
        jax.tree.leaves(both_ways(blend, *given)),
        jax.tree.leaves(both_ways(explicit, *given)),
        strict=True,
    ):
        np.testing.assert_array_equal(got, want)


def test_float64_is_refused():
    with jax.enable_x64(True):
        weights, stacks, _ = operands(1, (2,), 4, 8, "float64")
        with pytest.raises(ValueError, match="kernels take .*, got float64"):
            blend(weights, stacks)


@pytest.mark.parametrize(
    "platform, call", [("cuda", "xla.gpu.triton"), ("tpu", "tpu_custom_call")]
)
def test_both_directions_lower_to_kernels(platform, call):
    # Members side by side, as they run there; four streams of 768, 2 * 512 tokens.
    weights, stacks, g = operands(4, (4, 1), 1024, 768, "bfloat16")
    args = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((2, *x.shape), x.dtype), (weights, stacks, g)
    )
    step = jax.jit(jax.vmap(functools.partial(both_ways, blend)))
    lowered = step.trace(*args).lower(lowering_platforms=(platform,))
    lines = lowered.as_text().splitlines()
    calls = [line for line in lines if "stablehlo.custom_call" in line]
    assert len(calls) == 2
    assert all(call in line for line in calls)


@pytest.mark.parametrize(
    "size, most, expected", [(768, 128, 128), (768, 512, 256), (48, 512, 16), (1, 8, 1)]
)
def test_a_tile_is_a_power_of_two_that_divides(size, most, expected):
    assert tile(size, most) == expected
