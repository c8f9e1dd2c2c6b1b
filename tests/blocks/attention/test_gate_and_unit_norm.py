"""Small parts of attention: the sigmoid gate, and unit vectors."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from blocks.attention.gate import SigmoidGate
from blocks.attention.unit_norm import UnitNorm


@pytest.mark.parametrize("per, d_gate", [("feature", 6), ("head", 2)])
def test_a_gate_of_zero_halves(per, d_gate):
    gate = SigmoidGate(4, 2, 3, per=per, rngs=nnx.Rngs(0))
    assert gate.proj.kernel.shape == (4, d_gate)
    assert gate.proj.bias is None
    heads = jnp.arange(12.0).reshape(2, 6)
    np.testing.assert_array_equal(gate(jnp.zeros((2, 4)), heads), heads / 2)


def test_a_gate_per_head_opens_whole_heads():
    gate = SigmoidGate(2, 2, 3, per="head", rngs=nnx.Rngs(0))
    gate.proj.kernel.set_value(jnp.array([[100.0, -100.0], [0.0, 0.0]]))
    y = gate(jnp.array([[1.0, 0.0]], jnp.bfloat16), jnp.ones((1, 6), jnp.bfloat16))
    assert y.dtype == jnp.bfloat16
    np.testing.assert_array_equal(y, [[1, 1, 1, 0, 0, 0]])


def test_linear_factory_hears_the_use():
    calls = []

    def linear(d_in, d_out, *, use, bias, rngs):
        calls.append((d_in, d_out, use, bias))

    SigmoidGate(4, 2, 3, linear=linear, rngs=nnx.Rngs(0))
    assert calls == [(4, 6, "hidden", False)]


def test_unknown_per_is_refused():
    with pytest.raises(ValueError, match="per must be one of feature, head, got 'all'"):
        SigmoidGate.check(per="all")


def test_unit_vectors_whatever_the_length():
    norm = UnitNorm(2, rngs=nnx.Rngs(0))
    x = jnp.array([[3.0, 4.0]])
    for factor in (1.0, 1e-10, 1e10):
        np.testing.assert_allclose(norm(factor * x), [[0.6, 0.8]], rtol=1e-6)
    half = norm(jnp.array([[300.0, 400.0]], jnp.float16))  # squares leave float16
    assert half.dtype == jnp.float16
    np.testing.assert_allclose(half, [[0.6, 0.8]], rtol=1e-3)


# The same formula with 1e-3 in the place of 1e-12: by hand, below and above it.
def test_below_eps_it_is_linear(float64):
    norm = UnitNorm(2, eps=1e-3, rngs=nnx.Rngs(0))
    y, pull = jax.vjp(norm, jnp.array([3e-4, 4e-4]))
    np.testing.assert_allclose(y, [0.3, 0.4], rtol=1e-12)
    np.testing.assert_allclose(pull(jnp.array([1.0, -2.0]))[0], [1000, -2000])
    y, pull = jax.vjp(norm, jnp.zeros(2))
    np.testing.assert_allclose(pull(jnp.array([1.0, -2.0]))[0], [1000, -2000])


def test_unit_norm_refuses_other_widths_and_a_useless_eps():
    with pytest.raises(ValueError, match="expected last axis 4, got"):
        UnitNorm(4, rngs=nnx.Rngs(0))(jnp.ones((2, 1)))
    for eps in (0.0, 1e-30, float("nan")):
        with pytest.raises(ValueError, match=f"eps must be finite .*got {eps}"):
            UnitNorm.check(eps=eps)


def test_length_of_queries_does_not_reach_the_output():
    norm = functools.partial(UnitNorm, rngs=nnx.Rngs(0))(8)
    x = jax.random.normal(jax.random.key(0), (5, 8))
    gradient = jax.grad(lambda x: jnp.sum(jnp.sin(norm(x))))(x)
    np.testing.assert_allclose(jnp.sum(gradient * x, axis=-1), 0, atol=1e-6)
