"""What only DyT promises."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from blocks.norms.dyt import DyT

# float64 vectors computed with 60-digit arithmetic; nine digits. Data: conftest.py.
# V10 DyT, alpha=0.5 (params: alpha, g, b)
V10 = {
    "A": {
        "y": (1.24239123, -0.431058579, -0.605148254, 0),
        "dx": (0.314980756, -0.393223866, -0.0451766597, 3),
        "alpha": (1.7753108,),
        "gain": (0.761594156, 0.924234315, 0.452574127, 0),
    },
    "B": {
        "y": (1.24239123, 0.28201379, -0.695054754, 1.9986586),
        "dx": (0.314980756, -0.0353254124, -0.00246650929, 0.00402285205),
        "alpha": (1.01208725,),
        "gain": (0.761594156, -1.92805516, 0.497527377, 2.9979879),
    },
    "C": {
        "y": (1.6, -0.7, -0.7, 0),
        "dx": (0, 0, 0, 3),
        "alpha": (0,),
        "gain": (1, 2, 0.5, 0),
    },
    "D": {
        "y": (0.10015, -0.200025, 0.29985, 0),
        "dx": (0.749999993, -0.499999999, -0.249999994, 3),
        "alpha": (0.00025,),
        "gain": (9.99999997e-05, 9.99999999e-05, 7.49999994e-05, 0),
    },
}

NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(200)  # for means over N(0, 1)


def gaussian_mean(values):
    return np.sum(WEIGHTS * np.asarray(values, np.float64)) / np.sqrt(2 * np.pi)


def test_vectors(check_vectors):
    check_vectors(DyT(4, rngs=nnx.Rngs(0)), V10, alpha=(0.5,))


@pytest.mark.parametrize("alpha", [0.2, 0.5, 1.0])
def test_slope_at_zero_is_alpha(alpha):
    norm = DyT(1, alpha_init=alpha, rngs=nnx.Rngs(0))
    slope = jax.grad(lambda x: norm(x)[0])(jnp.zeros(1))
    np.testing.assert_allclose(slope, [alpha], rtol=1e-6)


@pytest.mark.parametrize("sigma, rms", [(0.5, 0.4166), (1.0, 0.6279), (3.0, 0.8632)])
def test_root_mean_square_for_gaussian_input(sigma, rms):
    # Gaussian quadrature of tanh(z), z ~ N(0, sigma^2); sigma = alpha * RMS(x).
    norm = DyT(1, alpha_init=sigma, rngs=nnx.Rngs(0))
    y = norm(jnp.asarray(NODES, jnp.float32)[:, None])[:, 0]
    np.testing.assert_allclose(np.sqrt(gaussian_mean(y**2)), rms, atol=1e-4)


def test_output_is_bounded_by_gain_and_bias():
    norm = DyT(2, rngs=nnx.Rngs(0))
    norm.gain.set_value(jnp.array([2.0, -3.0]))
    norm.bias.set_value(jnp.array([0.5, 0.25]))
    y = norm(jnp.array([[1e30, 1e30], [-1e30, -1e30]]))
    np.testing.assert_array_equal(y, [[2.5, -2.75], [-1.5, 3.25]])


def test_alpha_init_may_be_traced():
    x = jnp.array([0.3, -2.0])
    alphas = jnp.array([0.1, 0.7])
    y = jax.vmap(lambda a: DyT(2, alpha_init=a, rngs=nnx.Rngs(0))(x))(alphas)
    np.testing.assert_allclose(y, np.tanh(np.outer(alphas, x)), rtol=1e-6)


@pytest.mark.parametrize("alpha", [0.0, -1.0, float("inf"), float("nan")])
def test_alpha_that_is_no_slope_is_refused(alpha):
    with pytest.raises(ValueError, match=f"alpha_init must be .* got {alpha}"):
        DyT.check(alpha_init=alpha)
