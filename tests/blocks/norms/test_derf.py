"""What only Derf promises."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from blocks.norms.derf import Derf

# float64 vectors computed with 60-digit arithmetic; nine digits. Data: conftest.py.
# V11 Derf, alpha=0.5, s=0 (params: alpha, s, g, b)
V11 = {
    "A": {
        "y": (1.36405119, -0.460249939, -0.666105146, 0),
        "dx": (0.311330623, -0.439391289, -0.0297325723, 3.3851375),
        "alpha": (1.94570964,),
        "shift": (6.45468853,),
        "gain": (0.842700793, 1.04099976, 0.483052573, 0),
    },
    "B": {
        "y": (1.36405119, 0.297661133, -0.69997791, 1.99999997),
        "dx": (0.311330623, -0.0103334927, -3.4813263e-05, 3.8094704e-07),
        "alpha": (1.16224289,),
        "shift": (0.601925396,),
        "gain": (0.842700793, -1.99064453, 0.499988955, 2.99999995),
    },
    "C": {
        "y": (1.6, -0.7, -0.7, 0),
        "dx": (0, 0, 0, 3.3851375),
        "alpha": (0,),
        "shift": (6.770275,),
        "gain": (1, 2, 0.5, 0),
    },
    "D": {
        "y": (0.100169257, -0.200028209, 0.299830743, 0),
        "dx": (0.846284367, -0.564189582, -0.282094785, 3.3851375),
        "alpha": (0.000282094792,),
        "shift": (6.770275,),
        "gain": (0.000112837916, 0.000112837917, 8.46284369e-05, 0),
    },
}

# V12 Derf, alpha=0.5, s=0.1
V12 = {
    "A": {
        "y": (1.4203076, -0.414196178, -0.676348383, 0.224925832),
        "dx": (0.252359698, -0.480770649, -0.0218072647, 3.35145482),
        "alpha": (1.8401365,),
        "shift": (6.20247321,),
        "gain": (0.88020507, 0.85678471, 0.488174192, 0.337388748),
    },
    "B": {
        "y": (1.4203076, 0.298510267, -0.699988351, 1.99999999),
        "dx": (0.252359698, -0.006857825, -1.89158167e-05, 1.69467364e-07),
        "alpha": (0.954351915,),
        "shift": (0.490966254,),
        "gain": (0.88020507, -1.99404107, 0.499994176, 2.99999998),
    },
    "C": {
        "y": (1.6, -0.7, -0.7, 0.224925832),
        "dx": (0, 0, 0, 3.35145482),
        "alpha": (0,),
        "shift": (6.70290964,),
        "gain": (1, 2, 0.5, 0.337388748),
    },
    "D": {
        "y": (0.268861945, -0.143796471, 0.187369514, 0.224925832),
        "dx": (0.83784694, -0.558581388, -0.279279517, 3.35145482),
        "alpha": (0.000279287343,),
        "shift": (6.70288171,),
        "gain": (0.11257463, -0.224814116, 0.0563152431, 0.337388748),
    },
}

# V13 Derf, alpha=0.3, s=0
V13 = {
    "A": {
        "y": (1.00578414, -0.36431338, -0.496908212, 0),
        "dx": (0.354259544, -0.309378273, -0.0752952861, 2.0310825),
        "alpha": (2.64003834,),
        "shift": (6.66889495,),
        "gain": (0.603856091, 0.657253519, 0.398454106, 0),
    },
    "B": {
        "y": (1.00578414, 0.255156989, -0.689090502, 1.99862297),
        "dx": (0.354259544, -0.0802033041, -0.0066287585, 0.00640016763),
        "alpha": (1.33044887,),
        "shift": (0.912758831,),
        "gain": (0.603856091, -1.82062796, 0.494545251, 2.99793446),
    },
    "C": {
        "y": (1.6, -0.7, -0.7, 0),
        "dx": (0, 0, 0, 2.0310825),
        "alpha": (0,),
        "shift": (6.770275,),
        "gain": (1, 2, 0.5, 0),
    },
    "D": {
        "y": (0.100101554, -0.200016926, 0.299898446, 0),
        "dx": (0.507770623, -0.33851375, -0.169256874, 2.0310825),
        "alpha": (0.000282094792,),
        "shift": (6.770275,),
        "gain": (6.77027499e-05, 6.770275e-05, 5.07770624e-05, 0),
    },
}

NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(200)  # for means over N(0, 1)


def gaussian_mean(values):
    return np.sum(WEIGHTS * np.asarray(values, np.float64)) / np.sqrt(2 * np.pi)


@pytest.mark.parametrize(
    "alpha, shift, vectors", [(0.5, 0.0, V11), (0.5, 0.1, V12), (0.3, 0.0, V13)]
)
def test_vectors(check_vectors, alpha, shift, vectors):
    norm = Derf(4, rngs=nnx.Rngs(0))
    check_vectors(norm, vectors, alpha=(alpha,), shift=(shift,))


def test_equals_the_error_function_entry_by_entry():
    x = np.linspace(-4, 4, 41)
    norm = Derf(41, alpha_init=0.75, shift_init=0.25, rngs=nnx.Rngs(0))
    expected = [math.erf(0.75 * v + 0.25) for v in x]
    np.testing.assert_allclose(norm(jnp.asarray(x, jnp.float32)), expected, atol=1e-6)


@pytest.mark.parametrize("alpha", [0.25, 0.5, 1.0])
def test_slope_at_zero_is_two_alpha_over_root_pi(alpha):
    norm = Derf(1, alpha_init=alpha, rngs=nnx.Rngs(0))
    slope = jax.grad(lambda x: norm(x)[0])(jnp.zeros(1))
    np.testing.assert_allclose(slope, [2 * alpha / math.sqrt(math.pi)], rtol=1e-6)


@pytest.mark.parametrize("sigma, rms", [(0.5, 0.4651), (1.0, 0.6816), (3.0, 0.8902)])
def test_root_mean_square_for_gaussian_input(sigma, rms):
    # Gaussian quadrature of erf(z), z ~ N(0, sigma^2); sigma = alpha * RMS(x).
    norm = Derf(1, alpha_init=sigma, rngs=nnx.Rngs(0))
    y = norm(jnp.asarray(NODES, jnp.float32)[:, None])[:, 0]
    np.testing.assert_allclose(np.sqrt(gaussian_mean(y**2)), rms, atol=1e-4)


@pytest.mark.parametrize("sigma", [0.5, 1.0, 2.0])
def test_mean_slope_for_gaussian_input(sigma):
    # E[exp(-z^2)] = 1 / sqrt(1 + 2 sigma^2) in closed form.
    norm = Derf(1, alpha_init=sigma, rngs=nnx.Rngs(0))
    slope = jax.vmap(jax.grad(lambda x: norm(x)[0]))(
        jnp.asarray(NODES, jnp.float32)[:, None]
    )
    ratio = gaussian_mean(slope[:, 0]) / (2 * sigma / math.sqrt(math.pi))
    np.testing.assert_allclose(ratio, 1 / math.sqrt(1 + 2 * sigma**2), rtol=1e-5)


def test_output_is_bounded_by_gain_and_bias():
    norm = Derf(2, rngs=nnx.Rngs(0))
    norm.gain.set_value(jnp.array([2.0, -3.0]))
    norm.bias.set_value(jnp.array([0.5, 0.25]))
    y = norm(jnp.array([[1e30, 1e30], [-1e30, -1e30]]))
    np.testing.assert_array_equal(y, [[2.5, -2.75], [-1.5, 3.25]])


def test_erf_is_not_taken_in_bfloat16():
    # In bfloat16 arithmetic erf(2.203125) is exactly 1 and the tail is flat; parameters
    # stored in bfloat16 must not bring that back.
    norm = Derf(1, rngs=nnx.Rngs(0))
    values = {"alpha": 1.0, "shift": 0.0, "gain": 1024.0, "bias": -1024.0}
    for name, value in values.items():
        getattr(norm, name).set_value(jnp.full(1, value, jnp.bfloat16))
    y = norm(jnp.full(1, 2.203125, jnp.bfloat16)).astype(jnp.float32)
    np.testing.assert_allclose(y, [-1024 * math.erfc(2.203125)], rtol=4e-3)


def test_inits_may_be_traced():
    x = jnp.array([0.3, -2.0])
    alphas, shifts = jnp.array([0.1, 0.7]), jnp.array([0.0, -0.4])
    y = jax.vmap(lambda a, s: Derf(2, alpha_init=a, shift_init=s, rngs=nnx.Rngs(0))(x))(
        alphas, shifts
    )
    expected = [
        [math.erf(a * v + s) for v in (0.3, -2.0)] for a, s in ((0.1, 0.0), (0.7, -0.4))
    ]
    np.testing.assert_allclose(y, expected, atol=1e-6)


@pytest.mark.parametrize("alpha", [0.0, -1.0, float("inf"), float("nan")])
def test_alpha_that_is_no_slope_is_refused(alpha):
    with pytest.raises(ValueError, match=f"alpha_init must be .* got {alpha}"):
        Derf.check(alpha_init=alpha)


@pytest.mark.parametrize("shift", [float("inf"), float("nan")])
def test_shift_that_is_not_finite_is_refused(shift):
    with pytest.raises(ValueError, match=f"shift_init must be .* got {shift}"):
        Derf.check(shift_init=shift)
