"""What only RMSNorm promises."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from blocks.norms.rmsnorm import RMSNorm

# float64 vectors computed with 60-digit arithmetic; nine digits. Data: conftest.py.
# V3 RMSNorm, eps=1e-6 inside the root (param: g; zero-centred form uses w=g-1, dw=dg)
V3 = {
    "A": {
        "y": (1.60356722, -0.267261204, -1.60356722, 0),
        "dx": (0.610882806, -0.439072005, -0.553612412, 3.20713444),
        "gain": (1.06904481, 1.06904481, 0.801783611, 0),
    },
    "B": {
        "y": (0.547722548, 0.365148366, -1.0954451, 2.92118692),
        "dx": (0.139973545, -0.450349642, -0.49295028, 0.559894178),
        "gain": (0.365148366, -1.46059346, 0.547722548, 4.38178039),
    },
    "C": {
        "y": (1.60356745, -0.267261242, -1.60356745, 0),
        "dx": (0.000610882839, -0.00043907204, -0.000553612573, 0.0032071349),
        "gain": (1.06904497, 1.06904497, 0.801783726, 0),
    },
    "D": {
        "y": (0.294883912, -0.0491473187, -0.294883912, 0),
        "dx": (1462.54823, -977.010708, -509.280187, 5897.67825),
        "gain": (0.196589275, 0.196589275, 0.147441956, 0),
    },
}

# V4 RMSNorm without scale, eps=1e-6
V4 = {
    "A": {
        "y": (1.06904481, -0.534522407, 1.60356722, 0),
        "dx": (0.114540636, -0.859053929, -0.362711454, 1.60356722),
    },
    "B": {
        "y": (0.365148366, 0.730296731, 1.0954451, 1.46059346),
        "dx": (0.118673221, -0.492950289, -0.100415794, 0.292118701),
    },
    "C": {
        "y": (1.06904497, -0.534522484, 1.60356745, 0),
        "dx": (0.000114540532, -0.000859053992, -0.000362711685, 0.00160356745),
    },
    "D": {
        "y": (0.196589275, -0.0982946374, 0.294883912, 0),
        "dx": (956.829442, -1952.83428, 452.297788, 2948.83912),
    },
}


def test_vectors_with_gain(check_vectors):
    check_vectors(RMSNorm(4, rngs=nnx.Rngs(0)), V3)


def test_vectors_with_gain_one(check_vectors):
    check_vectors(RMSNorm(4, rngs=nnx.Rngs(0)), V4, gain=(1, 1, 1, 1))


@pytest.mark.parametrize("rows", ["normal", "offset", "large", "tiny", "zeros_const"])
@pytest.mark.parametrize(
    "case", ["rms_llama/fp32", "rms_gpt_oss_w32/bf16", "rms_gpt_oss_w32/fp16"]
)
def test_equals_transformers(check_golden, case, rows):
    check_golden(RMSNorm(16, eps=1e-5, rngs=nnx.Rngs(0)), f"{case}/{rows}")


@pytest.mark.parametrize("rows", ["normal", "offset", "large", "tiny", "zeros_const"])
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_equals_llama_up_to_its_earlier_rounding(check_golden, dtype, rows):
    check_golden(RMSNorm(16, eps=1e-5, rngs=nnx.Rngs(0)), f"rms_llama/{dtype}/{rows}")


def test_rounds_once_after_the_gain():
    # Rounding before the gain gives (1.375, -0.37109375, 1.765625, 0.14355469).
    norm = RMSNorm(4, rngs=nnx.Rngs(0))
    gain = jnp.array([1.3, 0.7, 1.1, 0.9], jnp.bfloat16).astype(jnp.float32)
    norm.gain.set_value(gain)
    y = norm(jnp.array([2, -1, 3, 0.3], jnp.bfloat16))
    expected = [1.3828125, -0.373046875, 1.7578125, 0.1435546875]
    np.testing.assert_array_equal(y.astype(jnp.float32), expected)


def test_float16_squares_do_not_overflow():
    # Squared in float16, 300 is infinite and the result is zero.
    y = RMSNorm(4, rngs=nnx.Rngs(0))(jnp.array([300, -300, 300, 300], jnp.float16))
    np.testing.assert_array_equal(y, [1, -1, 1, 1])


@pytest.mark.parametrize("eps, multiplier", [(1e-6, 707.10678), (1e-5, 301.51134)])
def test_eps_limits_the_multiplier_of_small_tokens(eps, multiplier):
    x = 1e-3 * jnp.array([1.0, -1.0, 1.0, -1.0])
    y = RMSNorm(4, eps=eps, rngs=nnx.Rngs(0))(x)
    np.testing.assert_allclose(y / x, jnp.full(4, multiplier), rtol=1e-6)


def test_gradient_is_divided_by_the_scale_of_the_input():
    # Homogeneity of degree 0 (eps far below the mean square): J(c x) = J(x) / c.
    norm = RMSNorm(8, eps=1e-12, rngs=nnx.Rngs(0))
    x = jax.random.normal(jax.random.key(0), (8,))
    jacobian = jax.jacobian(norm)
    np.testing.assert_allclose(
        jacobian(100 * x), jacobian(x) / 100, rtol=1e-4, atol=1e-7
    )
    np.testing.assert_allclose(jacobian(x) @ x, jnp.zeros(8), atol=1e-6)


@pytest.mark.parametrize("eps", [0.0, -1e-5, 1e-25, float("inf"), float("nan")])
def test_eps_that_cannot_protect_the_root_is_refused(eps):
    with pytest.raises(ValueError, match="eps must be"):
        RMSNorm.check(eps=eps)
    with pytest.raises(ValueError, match="eps must be"):
        RMSNorm(4, eps=eps, rngs=nnx.Rngs(0))


def test_gradient_at_zero_is_finite_at_the_smallest_eps():
    norm = RMSNorm(4, eps=1e-24, rngs=nnx.Rngs(0))
    assert jnp.isfinite(jax.grad(lambda x: norm(x)[0])(jnp.zeros(4))).all()
