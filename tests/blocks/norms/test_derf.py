"""What only Derf promises."""

import json
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from blocks.norms.derf import Derf
from blocks.norms.dyt import DyT

GOLDEN = Path(__file__).parents[2] / "golden" / "pointwise_vectors.json"
OUTSIDE = json.loads(GOLDEN.read_text())

NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(200)  # for means over N(0, 1)


def gaussian_mean(values):
    return np.sum(WEIGHTS * np.asarray(values, np.float64)) / np.sqrt(2 * np.pi)


@pytest.mark.parametrize(
    "alpha, shift, vectors",
    [(0.5, 0.0, "derf"), (0.5, 0.1, "derf_shifted"), (0.3, 0.0, "derf_0.3")],
)
def test_vectors(check_vectors, alpha, shift, vectors):
    norm = Derf(4, rngs=nnx.Rngs(0))
    vectors = OUTSIDE["vectors"][vectors]
    check_vectors(norm, vectors, alpha=(alpha,), shift=(shift,))


@pytest.mark.parametrize("value", ["0.9", "0.95", "0.99", "0.999"])
def test_value_where_erf_is_nearly_flat(value):
    z = OUTSIDE["saturation"]["value"][value]["erf"]
    y = Derf(1, alpha_init=2.0, rngs=nnx.Rngs(0))(jnp.full(1, z / 2))
    np.testing.assert_allclose(y, [float(value)], atol=2e-5)


def test_exactly_one_in_float32_from_about_3_8():
    # Rounded correctly it would be 3.92, where erfc is half a unit of the last digit.
    grid = jnp.arange(0, 6, 1 / 64)[:, None]
    y = Derf(1, alpha_init=1.0, rngs=nnx.Rngs(0))(grid)[:, 0]
    assert 3.7 < float(grid[jnp.argmax(y == 1), 0]) < 3.95


def test_nearest_tanh_has_1_205_times_the_slope():
    # arXiv 2512.10938 section 7.2: the factor with the smallest mean absolute distance.
    x = jnp.linspace(-8, 8, 4001)[:, None]
    y = Derf(1, alpha_init=0.5, rngs=nnx.Rngs(0))(x)
    factors = np.arange(1.0, 1.5, 0.005)
    distances = [
        np.abs(y - DyT(1, alpha_init=0.5 * factor, rngs=nnx.Rngs(0))(x)).mean()
        for factor in factors
    ]
    np.testing.assert_allclose(factors[np.argmin(distances)], 1.205, atol=1e-9)


def test_best_slope_for_a_gaussian_token():
    # 200,000 samples of numpy.random.default_rng(5): erf(alpha x) is nearest to
    # x / RMS(x) at 1.17, with mean square error 0.156987.
    x = np.random.default_rng(5).standard_normal(200_000)
    target = jnp.asarray(x / np.sqrt(np.mean(x**2)), jnp.float32)
    x = jnp.asarray(x, jnp.float32)[:, None]

    def error(alpha):
        y = Derf(1, alpha_init=alpha, rngs=nnx.Rngs(0))(x)[:, 0]
        return jnp.mean(jnp.square(y - target))

    errors = jax.jit(jax.vmap(error))(jnp.array([1.0, 1.16, 1.17, 1.18, 1.43]))
    assert int(jnp.argmin(errors)) == 2
    np.testing.assert_allclose(errors[2], 0.156987, atol=1e-6)


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


@pytest.mark.parametrize(
    "d_model, site, alpha", [(4096, "attn", 0.8), (8192, "ffn", 0.05), (64, "qk", 0.5)]
)
def test_auto_is_the_slope_of_dyt_over_1_205(d_model, site, alpha):
    norm = Derf(d_model, alpha_init="auto", site=site, rngs=nnx.Rngs(0))
    np.testing.assert_allclose(norm.alpha[...], [alpha / 1.205], rtol=1e-6)


def test_shift_without_a_parameter_for_it_is_refused():
    with pytest.raises(ValueError, match="shift_init must be 0 .* got 0.5"):
        Derf.check(shift_init=0.5, shift=False)


def test_without_shift_and_bias():
    norm = Derf(2, shift=False, bias=False, rngs=nnx.Rngs(0))
    assert norm.shift is None
    assert norm.bias is None
    x = jnp.array([0.3, -2.0])
    np.testing.assert_allclose(norm(x), [math.erf(0.15), math.erf(-1.0)], rtol=1e-6)
