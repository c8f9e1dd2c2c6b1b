"""The gated feed-forward network."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.test_util import check_grads

from blocks.ffn.swiglu import SwiGLU
from blocks.norms.rmsnorm import RMSNorm
from blocks.oracle import ffn as oracle
from blocks.oracle import norms


def in_float64(module):
    """The module with random float64 parameters."""
    keys = iter(jax.random.split(jax.random.key(7), 100))
    graphdef, params, rest = nnx.split(module, nnx.Param, ...)
    drawn = jax.tree.map(
        lambda leaf: jax.random.normal(next(keys), leaf.shape, jnp.float64), params
    )
    return nnx.merge(graphdef, drawn, rest)


def weights(linear):
    bias = None if linear.bias is None else np.asarray(linear.bias[...])
    return np.asarray(linear.kernel[...]), bias


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("inner", [False, True])
def test_equals_the_oracle(float64, bias, inner):
    ffn = in_float64(
        SwiGLU(
            6, 10, bias=bias, inner_norm=RMSNorm if inner else None, rngs=nnx.Rngs(0)
        )
    )
    x = np.random.default_rng(0).normal(size=(5, 6))
    inner_norm = None
    if inner:
        gain = np.asarray(ffn.inner_norm.gain[...])
        inner_norm = lambda h: norms.rmsnorm(h, gain=gain, eps=1e-6)  # noqa: E731
    expected = oracle.swiglu(
        x,
        gate=weights(ffn.gate),
        up=weights(ffn.up),
        down=weights(ffn.down),
        inner_norm=inner_norm,
    )
    y = ffn(jnp.asarray(x))
    assert y.dtype == jnp.float64
    np.testing.assert_allclose(y, expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_equals_the_llama_mlp(golden_units, assert_within, half_tolerance, dtype):
    arrays = golden_units(f"llama_mlp/{dtype}/normal")
    ffn = SwiGLU(16, 20, rngs=nnx.Rngs(0))
    for name in ("gate", "up", "down"):
        kernel = arrays[f"in.{name}_proj__weight"].T  # torch stores [out, in]
        getattr(ffn, name).kernel.set_value(kernel.astype(jnp.float32))
    graphdef, params = nnx.split(ffn, nnx.Param)
    x = arrays["in.x"]
    y, pull = jax.vjp(lambda p, x: nnx.merge(graphdef, p)(x), params, x)
    d_params, dx = pull(arrays["dy"])
    fraction = half_tolerance[dtype]
    assert y.dtype == x.dtype
    assert_within(y, arrays["out"], fraction, "out")
    assert_within(dx, arrays["grad.x"], fraction, "x")
    for name in ("gate", "up", "down"):
        got = d_params[name]["kernel"][...].T
        assert_within(got, arrays[f"grad.{name}_proj__weight"], fraction, name)


def test_equals_the_first_layer_of_qwen3(golden_layer, assert_within):
    w = golden_layer("qwen3")
    norm = RMSNorm(32, eps=1e-3, rngs=nnx.Rngs(0))
    norm.gain.set_value(w["post_attention_layernorm.weight"])
    ffn = SwiGLU(32, 48, rngs=nnx.Rngs(0))
    for name in ("gate", "up", "down"):
        getattr(ffn, name).kernel.set_value(w[f"mlp.{name}_proj.weight"].T)
    x = (w["hidden_states.0"] + w["layers.0.attn_out"]).reshape(-1, 32)
    assert_within(ffn(norm(x), (2, 12)), w["layers.0.mlp_out"].reshape(-1, 32), 1e-5)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_keeps_shape_and_dtype(dtype):
    ffn = SwiGLU(6, 10, bias=True, inner_norm=RMSNorm, rngs=nnx.Rngs(0))
    x = jax.random.normal(jax.random.key(0), (12, 6), dtype)
    y = ffn(x, shape=(3, 4))
    assert (y.shape, y.dtype) == (x.shape, dtype)


def test_gradient_equals_central_differences(float64):
    ffn = in_float64(SwiGLU(4, 6, bias=True, inner_norm=RMSNorm, rngs=nnx.Rngs(0)))
    graphdef, params = nnx.split(ffn, nnx.Param)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(3, 4)))
    check_grads(
        jax.jit(lambda p, x: nnx.merge(graphdef, p)(x)),
        (params, x),
        order=1,
        modes=["rev"],
        rtol=1e-6,
        atol=1e-6,
        eps=1e-5,
    )


def test_linear_factory_hears_the_uses():
    calls = []

    def linear(d_in, d_out, *, use, bias, rngs):
        calls.append((d_in, d_out, use, bias))
        return lambda x: x

    SwiGLU(6, 10, linear=linear, rngs=nnx.Rngs(0))
    assert sorted(calls) == [
        (6, 10, "hidden", False),
        (6, 10, "hidden", False),
        (10, 6, "output", False),
    ]
