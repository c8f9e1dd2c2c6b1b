"""Rotary position embedding."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.test_util import check_grads

from blocks.oracle import attention as oracle
from blocks.positions.rope import Rope


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
def test_equals_transformers(golden_units, assert_within, half_tolerance, dtype):
    arrays = golden_units(f"rope_half/{dtype}/q")
    rope = Rope(8, base=100.0)
    x = arrays["in.x"]
    y, pull = jax.vjp(lambda x: rope(x, x)[0], x)
    assert y.dtype == x.dtype
    assert_within(y, arrays["out"], half_tolerance[dtype])
    assert_within(pull(arrays["dy"])[0], arrays["grad.x"], half_tolerance[dtype])


def test_equals_the_oracle(float64):
    rng = np.random.default_rng(0)
    q, k = rng.normal(size=(1, 2, 9, 6)), rng.normal(size=(1, 1, 9, 6))
    rotated = Rope(6, base=500.0)(jnp.asarray(q), jnp.asarray(k))
    for y, x in zip(rotated, (q, k), strict=True):
        assert y.dtype == jnp.float64
        for head in range(x.shape[1]):
            expected = oracle.rope(x[0, head], base=500.0)
            np.testing.assert_allclose(y[0, head], expected, rtol=1e-12, atol=1e-13)


def test_first_half_is_paired_with_second_half():
    # Token 1: pair 0 turns by 1 radian, pair 1 by base^(-1/2) = 0.1.
    x = jnp.zeros((1, 1, 2, 4)).at[..., 1, :].set(jnp.array([1.0, 1.0, 0.0, 0.0]))
    y, _ = Rope(4, base=100.0)(x, x)
    expected = [math.cos(1), math.cos(0.1), math.sin(1), math.sin(0.1)]
    np.testing.assert_allclose(y[0, 0, 1], expected, rtol=1e-6)


@pytest.mark.parametrize("shift", [1, 7, 100])
def test_products_depend_on_the_difference_of_positions(float64, shift):
    rng = np.random.default_rng(0)
    rope = Rope(8)
    # The same two vectors at every position.
    q = jnp.asarray(np.tile(rng.normal(size=8), (1, 1, 120, 1)))
    k = jnp.asarray(np.tile(rng.normal(size=8), (1, 1, 120, 1)))
    q, k = rope(q, k)
    products = q[0, 0] @ k[0, 0].T
    moved = products[shift:, shift:]
    np.testing.assert_allclose(products[:-shift, :-shift], moved, rtol=0, atol=1e-12)
    assert abs(products[3, 0] - products[4, 0]) > 1e-3


def test_lengths_are_kept_and_position_zero_does_not_turn():
    x = jax.random.normal(jax.random.key(0), (2, 3, 11, 8))
    y, _ = Rope(8)(x, x)
    np.testing.assert_allclose(
        jnp.linalg.norm(y, axis=-1), jnp.linalg.norm(x, axis=-1), rtol=1e-5
    )
    np.testing.assert_array_equal(y[:, :, 0], x[:, :, 0])
    assert not np.allclose(y[:, :, 1], x[:, :, 1], atol=1e-2)


def test_float32_angles_are_right_far_out():
    # In bfloat16 position 4001 is 4000; rounded float32 angles drift by 1e-3 here.
    x = jnp.zeros((1, 1, 30001, 2), jnp.float32).at[..., 0].set(1.0)
    y, _ = Rope(2)(x, x)
    for position in (4001, 30000):
        expected = [math.cos(position), math.sin(position)]
        np.testing.assert_allclose(y[0, 0, position], expected, atol=1e-6)
    half, _ = Rope(2)(x.astype(jnp.bfloat16), x.astype(jnp.bfloat16))
    np.testing.assert_allclose(half.astype(jnp.float32), y, atol=4e-3)


def test_gradient_equals_central_differences(float64):
    rng = np.random.default_rng(0)
    q, k = (jnp.asarray(rng.normal(size=(1, 2, 3, 4))) for _ in range(2))
    check_grads(lambda q, k: Rope(4)(q, k), (q, k), 1, ["rev"])


def test_has_no_variables():
    assert not jax.tree.leaves(nnx.state(Rope(4)))


@pytest.mark.parametrize("d_head", [0, 1, 5])
def test_odd_head_is_refused(d_head):
    with pytest.raises(
        ValueError, match=f"d_head must be even and positive, got {d_head}"
    ):
        Rope(d_head)


@pytest.mark.parametrize("base", [1.0, 0.0, -2.0, float("inf"), float("nan")])
def test_senseless_base_is_refused(base):
    with pytest.raises(ValueError, match=f"base must be .*got {base}"):
        Rope.check(base=base)


def test_wrong_width_is_refused():
    x = jnp.ones((1, 1, 3, 6))
    with pytest.raises(ValueError, match="expected last axis 4"):
        Rope(4)(x, x)
