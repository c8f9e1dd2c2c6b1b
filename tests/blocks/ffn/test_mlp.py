"""The two-matrix feed-forward network."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.test_util import check_grads

from blocks.ffn.mlp import MLP
from blocks.norms.layernorm import LayerNorm
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
@pytest.mark.parametrize(
    "name, function",
    [
        ("relu", oracle.relu),
        ("relu2", oracle.relu2),
        ("gelu", oracle.gelu),
        ("gelu_erf", oracle.gelu_erf),
        ("quick_gelu", oracle.quick_gelu),
        ("silu", oracle.silu),
    ],
)
def test_equals_the_oracle(float64, name, function, bias):
    mlp = in_float64(MLP(6, 10, activation=name, bias=bias, rngs=nnx.Rngs(0)))
    x = np.random.default_rng(0).normal(size=(5, 6))
    y = mlp(jnp.asarray(x))
    expected = oracle.mlp(
        x, up=weights(mlp.up), down=weights(mlp.down), activation=function
    )
    assert y.dtype == jnp.float64
    np.testing.assert_allclose(y, expected, rtol=1e-11, atol=1e-12)


def test_inner_norm_sits_between_activation_and_down(float64):
    mlp = in_float64(MLP(6, 10, inner_norm=RMSNorm, rngs=nnx.Rngs(0)))
    x = np.random.default_rng(0).normal(size=(5, 6))
    gain = np.asarray(mlp.inner_norm.gain[...])
    assert gain.shape == (10,)
    expected = oracle.mlp(
        x,
        up=weights(mlp.up),
        down=weights(mlp.down),
        inner_norm=lambda h: norms.rmsnorm(h, gain=gain, eps=1e-6),
    )
    np.testing.assert_allclose(mlp(jnp.asarray(x)), expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("rows", ["normal", "clamped", "large", "edges"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize(
    "name, case",
    [("gelu", "act_gelu_pytorch_tanh"), ("silu", "act_silu"), ("relu", "act_relu")],
)
def test_activation_equals_torch(
    golden_units, assert_within, half_tolerance, name, case, dtype, rows
):
    # With identities for up and down the network is its activation.
    arrays = golden_units(f"{case}/{dtype}/{rows}")
    mlp = MLP(32, 32, activation=name, rngs=nnx.Rngs(0))
    mlp.up.kernel.set_value(jnp.eye(32))
    mlp.down.kernel.set_value(jnp.eye(32))
    y, pull = jax.vjp(mlp, arrays["in.x"])
    assert y.dtype == arrays["in.x"].dtype
    fraction = half_tolerance[dtype]
    assert_within(y, arrays["out"], fraction)
    assert_within(pull(arrays["dy"])[0], arrays["grad.x"], fraction)


def test_equals_the_first_layer_of_gpt2(golden_layer, assert_within):
    w = golden_layer("gpt2")
    norm = LayerNorm(32, eps=1e-3, rngs=nnx.Rngs(0))
    norm.gain.set_value(w["ln_2.weight"])
    norm.bias.set_value(w["ln_2.bias"])
    mlp = MLP(32, 96, bias=True, rngs=nnx.Rngs(0))
    mlp.up.kernel.set_value(w["mlp.c_fc.weight"])  # GPT-2 stores [in, out]
    mlp.up.bias.set_value(w["mlp.c_fc.bias"])
    mlp.down.kernel.set_value(w["mlp.c_proj.weight"])
    mlp.down.bias.set_value(w["mlp.c_proj.bias"])
    x = (w["hidden_states.0"] + w["layers.0.attn_out"]).reshape(-1, 32)
    assert_within(mlp(norm(x), (2, 12)), w["layers.0.mlp_out"].reshape(-1, 32), 1e-5)


def test_gelu_is_its_tanh_form():
    # 0.5 x (1 + erf(x / sqrt(2))) at 1 is 0.8413447; the tanh form is 0.8411920.
    mlp = MLP(1, 1, rngs=nnx.Rngs(0))
    mlp.up.kernel.set_value(jnp.eye(1))
    mlp.down.kernel.set_value(jnp.eye(1))
    np.testing.assert_allclose(mlp(jnp.ones((1, 1))), [[0.8411920]], atol=2e-7)


def test_width_follows_from_d_model_where_none_is_given():
    # jingyaogong/minimind: f = 64 ceil(pi d / 64) = 2432 at d = 768.
    assert MLP(8, None, rngs=nnx.Rngs(0)).up.kernel.shape == (8, 32)
    assert MLP(8, 5, ratio=9.0, rngs=nnx.Rngs(0)).d_ff == 5
    narrow = MLP(48, None, ratio=3.141592653589793, multiple_of=64, rngs=nnx.Rngs(0))
    assert narrow.down.kernel.shape == (192, 48)


@pytest.mark.parametrize(
    "keyword, value",
    [
        ("ratio", 0.0),
        ("ratio", float("inf")),
        ("multiple_of", 0),
        ("dropout", 1.0),
        ("dropout", -0.1),
    ],
)
def test_bad_numbers_are_refused(keyword, value):
    with pytest.raises(ValueError, match=f"{keyword} must be .*{value}"):
        MLP(6, None, **{keyword: value}, rngs=nnx.Rngs(0))


def test_float16_gradient_survives_the_cube_in_gelu():
    # 45^3 is not a float16: evaluated in it, the gradient is inf * 0.
    mlp = MLP(1, 1, rngs=nnx.Rngs(0))
    mlp.up.kernel.set_value(jnp.eye(1))
    mlp.down.kernel.set_value(jnp.eye(1))
    x = jnp.array([[45.0], [-45.0]], jnp.float16)
    gradient = jax.grad(lambda x: mlp(x).sum())(x)
    np.testing.assert_array_equal(gradient, [[1], [0]])


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("inner_norm", [None, RMSNorm])
def test_keeps_shape_and_dtype(dtype, inner_norm):
    mlp = MLP(6, 10, bias=True, inner_norm=inner_norm, rngs=nnx.Rngs(0))
    x = jax.random.normal(jax.random.key(0), (12, 6), dtype)
    y = mlp(x, shape=(3, 4))
    assert (y.shape, y.dtype) == (x.shape, dtype)


def test_gradient_equals_central_differences(float64):
    mlp = in_float64(MLP(4, 6, bias=True, inner_norm=RMSNorm, rngs=nnx.Rngs(0)))
    graphdef, params = nnx.split(mlp, nnx.Param)
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

    MLP(6, 10, bias=True, linear=linear, rngs=nnx.Rngs(0))
    assert calls == [(6, 10, "hidden", True), (10, 6, "output", True)]


@pytest.mark.parametrize(
    "name, near", [("gelo", "gelu"), ("RELU", ""), ("softmax", "")]
)
def test_unknown_activation_is_refused_with_the_nearest(name, near):
    hint = f"did you mean '{near}'" if near else f"got '{name}'"
    with pytest.raises(ValueError, match=hint):
        MLP.check(activation=name)
    with pytest.raises(ValueError, match="activation must be one of"):
        MLP(6, 10, activation=name, rngs=nnx.Rngs(0))
