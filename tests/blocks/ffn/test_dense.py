"""Dense: one map and an activation."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.test_util import check_grads

from blocks.ffn.dense import Dense
from blocks.linear import Linear
from blocks.norms.rmsnorm import RMSNorm
from blocks.oracle import ffn as oracle
from blocks.oracle import norms


@pytest.fixture
def x():
    return np.random.default_rng(0).normal(size=(5, 6))


@pytest.mark.parametrize("activation", ["relu", "identity", "gelu"])
@pytest.mark.parametrize("bias", [False, True])
def test_equals_the_oracle(x, randomized, assert_within, activation, bias):
    dense = randomized(
        Dense(6, None, activation=activation, bias=bias, rngs=nnx.Rngs(0))
    )
    offset = np.asarray(dense.up.bias[...]) if bias else None
    expected = getattr(oracle, activation)(
        oracle.linear(x, np.asarray(dense.up.kernel[...]), offset)
    )
    y = jax.jit(dense)(jnp.asarray(x, jnp.float32))
    assert y.dtype == jnp.float32
    assert_within(y, expected, 1e-6)
    half = dense(jnp.asarray(x, jnp.bfloat16))
    assert half.dtype == jnp.bfloat16
    assert_within(half, expected, 2e-2)


def test_the_inner_norm_sits_before_the_activation(x, assert_within):
    norm = functools.partial(RMSNorm, eps=1e-6)
    dense = Dense(6, None, inner_norm=norm, rngs=nnx.Rngs(0))
    h = oracle.linear(x, np.asarray(dense.up.kernel[...], np.float64))
    expected = oracle.relu(norms.rmsnorm(h, gain=1.0, eps=1e-6))
    assert_within(dense(jnp.asarray(x, jnp.float32)), expected, 1e-6)


def test_gradient_equals_central_differences(x):
    with jax.enable_x64(True):
        dense = Dense(6, None, activation="gelu", bias=True, rngs=nnx.Rngs(0))
        graphdef, params = nnx.split(dense)
        params = jax.tree.map(lambda p: p.astype(jnp.float64) + 0.1, params)
        check_grads(
            jax.jit(lambda p, x: nnx.merge(graphdef, p)(x)),
            (params, jnp.asarray(x)),
            order=1,
            modes=["rev"],
            rtol=1e-6,
            atol=1e-6,
            eps=1e-6,
        )


def test_the_map_feeds_a_nonlinearity_and_is_square_whatever_d_ff_is():
    uses = []

    def linear(d_in, d_out, *, use, bias, rngs):
        uses.append((d_in, d_out, use, bias))
        return Linear(d_in, d_out, use=use, bias=bias, rngs=rngs)

    Dense(6, 24, linear=linear, rngs=nnx.Rngs(0))
    assert uses == [(6, 6, "hidden", False)]


def test_an_unknown_activation_is_refused():
    with pytest.raises(ValueError, match="relo"):
        Dense(6, None, activation="relo", rngs=nnx.Rngs(0))
