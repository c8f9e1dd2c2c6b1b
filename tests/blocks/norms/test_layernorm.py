"""What only LayerNorm promises."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from blocks.norms.layernorm import LayerNorm

# float64 vectors computed with 60-digit arithmetic; nine digits. Data: conftest.py.
# V1 LayerNorm, eps=1e-6 (params: g, b)
V1 = {
    "A": {
        "y": (1.04868311, -0.832455406, -0.964910811, -1.26491081),
        "dx": (0.221359303, -2.02385712, -0.822192204, 2.62469002),
        "gain": (0.632455406, 2.52982162, 0.632455406, -1.89736622),
    },
    "B": {
        "y": (-1.91246098, -0.423606775, -0.147213551, 2.6832813),
        "dx": (0.939148269, -0.804984454, -1.20747652, 1.07331271),
        "gain": (-1.34164065, 0.894427102, 0.223606775, 4.02492196),
    },
    "C": {
        "y": (1.0486833, -0.832455532, -0.964911064, -1.26491106),
        "dx": (0.000221359436, -0.0020238577, -0.000822192192, 0.00262469046),
        "gain": (0.632455532, 2.52982213, 0.632455532, -1.8973666),
    },
    "D": {
        "y": (0.248159439, -0.29877296, 0.102454081, -0.197545919),
        "dx": (8.43183802, -2486.18767, -1958.59552, 4436.35135),
        "gain": (0.0987729597, 0.395091839, 0.0987729597, -0.296318879),
    },
}

# V2 LayerNorm without scale and bias, eps=1e-5 (OLMo-1 style)
V2 = {
    "A": {
        "y": (0.632454267, -1.26490853, 1.26490853, -0.632454267),
        "dx": (0.047434829, -1.28072141, -0.458527826, 1.69181441),
    },
    "B": {
        "y": (-1.34163944, -0.447213148, 0.447213148, 1.34163944),
        "dx": (0.737900554, -0.983869306, -0.245966851, 0.491935604),
    },
    "C": {
        "y": (0.632455532, -1.26491106, 1.26491106, -0.632455532),
        "dx": (4.74341649e-05, -0.00128072245, -0.000458530261, 0.00169181855),
    },
    "D": {
        "y": (0.0315833221, -0.0631666442, 0.0631666442, -0.0315833221),
        "dx": (118.201174, -828.589637, -39.951721, 750.340184),
    },
}


def test_vectors_with_gain_and_bias(check_vectors):
    check_vectors(LayerNorm(4, eps=1e-6, rngs=nnx.Rngs(0)), V1)


def test_vectors_without_parameters(check_vectors):
    norm = LayerNorm(4, gain=False, bias=False, rngs=nnx.Rngs(0))
    assert not jax.tree.leaves(nnx.state(norm, nnx.Param))
    check_vectors(norm, V2)


@pytest.mark.parametrize("rows", ["normal", "offset", "large", "tiny", "zeros_const"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
def test_equals_torch(check_golden, dtype, rows):
    check_golden(LayerNorm(16, rngs=nnx.Rngs(0)), f"torch_layer_norm/{dtype}/{rows}")


@pytest.mark.parametrize("mean", [1000.0, 3000.0, 30000.0])
def test_variance_survives_a_large_mean(mean):
    # mean(x^2) - mean(x)^2 in float32 gives +-500 and +-1000 at mean 3000.
    norm = LayerNorm(4, eps=1e-6, rngs=nnx.Rngs(0))
    y = norm(jnp.array([mean + 0.5, mean - 0.5, mean + 1, mean - 1]))
    np.testing.assert_allclose(y, [0.632455, -0.632455, 1.264910, -1.264910], atol=2e-6)


def test_a_constant_vector_maps_to_the_bias():
    norm = LayerNorm(4, rngs=nnx.Rngs(0))
    norm.bias.set_value(jnp.array([0.1, -0.2, 0.3, 0.0]))
    np.testing.assert_array_equal(norm(jnp.full(4, 7.0)), norm.bias[...])


def test_shifting_and_scaling_the_input_scales_eps(float64):
    # f_eps(c x + s) = f_(eps / c^2)(x)
    x = jnp.asarray(np.random.default_rng(0).normal(size=8) * 1e-3)
    scaled = LayerNorm(8, eps=1e-5, rngs=nnx.Rngs(0))(10 * x + 3)
    plain = LayerNorm(8, eps=1e-7, rngs=nnx.Rngs(0))(x)
    np.testing.assert_allclose(scaled, plain, rtol=1e-10)


@pytest.mark.parametrize(
    "keywords, roles", [({"bias": False}, ["gain"]), ({}, ["bias", "gain"])]
)
def test_bias_can_be_left_out(keywords, roles):
    state = nnx.state(LayerNorm(4, **keywords, rngs=nnx.Rngs(0)), nnx.Param)
    found = [v.get_metadata()["role"] for _, v in nnx.to_flat_state(state)]
    assert sorted(found) == roles


@pytest.mark.parametrize("eps", [0.0, -1e-5, 1e-25, float("inf"), float("nan")])
def test_eps_that_cannot_protect_the_root_is_refused(eps):
    with pytest.raises(ValueError, match="eps must be"):
        LayerNorm.check(eps=eps)
    with pytest.raises(ValueError, match="eps must be"):
        LayerNorm(4, eps=eps, rngs=nnx.Rngs(0))


def test_gradient_at_zero_is_finite_at_the_smallest_eps():
    norm = LayerNorm(4, eps=1e-24, rngs=nnx.Rngs(0))
    assert jnp.isfinite(jax.grad(lambda x: norm(x)[0])(jnp.zeros(4))).all()
