"""What only the pointwise family promises."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from blocks.norms.pointwise import Pointwise
from blocks.norms.squashers import FUNCTIONS
from blocks.oracle import pointwise_norms as oracle

GOLDEN = Path(__file__).parents[2] / "golden" / "pointwise_vectors.json"
OUTSIDE = json.loads(GOLDEN.read_text())
VECTORS = OUTSIDE["vectors"]
SATURATION = OUTSIDE["saturation"]

# Slopes at zero from the formulas of arXiv 2512.10938 table 7 by hand; None: infinite.
SLOPE_AT_ZERO = {
    "erf": 2 / np.sqrt(np.pi),
    "tanh": 1,
    "satursin": 1,
    "arcsinhclip": 1,
    "isru": 1,
    "exproot": None,
    "hardtanh": 1,
    "expsign": 1,
    "logsignclip": 1,
    "relsign": 0.5,
    "arctan": 2 / np.pi,
    "smoothsign": 1,
    "logquadclip": 0,
    "power23clip": None,
    "saturlog": 1,
    "cubsign": 0,
    "identity": 1,
}

NODES = np.linspace(-9, 9, 20001)  # for means over N(0, 1)
WEIGHTS = np.exp(-(NODES**2) / 2)


def gaussian_mean(values):
    return np.average(np.asarray(values, np.float64), weights=WEIGHTS)


def norm_of(function, d_model=1, **keywords):
    keywords = {"alpha_init": 1.0, **keywords}
    return Pointwise(d_model, function=function, **keywords, rngs=nnx.Rngs(0))


def slope_of(function):
    return jax.jit(jax.vmap(jax.grad(FUNCTIONS[function])))


def test_the_functions_are_those_of_the_oracle():
    assert set(FUNCTIONS) == set(oracle.FUNCTIONS) == set(SLOPE_AT_ZERO)
    names = {v.split("/")[1] for v in VECTORS if v.startswith("pointwise/")}
    assert names == set(FUNCTIONS) | {"hardtanh_unshifted"}


@pytest.mark.parametrize("function", FUNCTIONS)
def test_vectors(check_vectors, function):
    norm = norm_of(function, 4)
    vectors = VECTORS[f"pointwise/{function}"]
    check_vectors(norm, vectors, alpha=(0.5,), shift=(0.1,))


def test_vectors_of_hardtanh_without_shift(check_vectors):
    vectors = VECTORS["pointwise/hardtanh_unshifted"]
    check_vectors(norm_of("hardtanh", 4), vectors, alpha=(0.4,), shift=(0,))


@pytest.mark.parametrize("function", FUNCTIONS)
def test_equals_the_oracle_everywhere(function, float64):
    tails = np.geomspace(1e-12, 1e12, 97)
    z = np.concatenate([-tails, np.linspace(-6, 6, 201), tails])
    expected = oracle.FUNCTIONS[function](z)
    y = jax.jit(FUNCTIONS[function])(jnp.asarray(z))
    # the oracle forms 1 - exp(-a) and the like, which lose digits near zero
    np.testing.assert_allclose(y, expected, rtol=1e-11, atol=1e-15)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_slope_equals_central_differences(function, float64):
    z = np.linspace(-6, 6, 161) + 0.0123  # clear of the kinks by far more than h
    h = 1e-6
    f = oracle.FUNCTIONS[function]
    expected = (f(z + h) - f(z - h)) / (2 * h)
    slope = slope_of(function)(jnp.asarray(z))
    np.testing.assert_allclose(slope, expected, rtol=1e-6, atol=2e-9)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_slope_at_zero(function):
    expected = SLOPE_AT_ZERO[function]
    at_zero, beside = slope_of(function)(jnp.array([0.0, 1e-20]))
    if expected is None:
        assert at_zero == 0
        assert 1e5 < beside < 1e10
    else:
        np.testing.assert_allclose([at_zero, beside], expected, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_odd_rising_and_bounded_by_one(function):
    z = jnp.asarray(np.concatenate([[0], np.geomspace(1e-6, 1e18, 300)]), jnp.float32)
    f = jax.jit(FUNCTIONS[function])
    y = f(z)
    np.testing.assert_array_equal(f(-z), -y)
    assert (jnp.diff(y) >= -1e-6).all()
    if function != "identity":
        assert (y <= 1 + 1e-6).all()  # quotients and products round upwards too
        assert y[-1] > 0.97  # saturlog is still on its way
    slope = slope_of(function)(z)
    assert jnp.isfinite(slope).all()
    assert (slope >= 0).all()


@pytest.mark.parametrize(
    "function, exponent",
    [("isru", 3), ("relsign", 2), ("smoothsign", 2), ("arctan", 2)],
)
def test_tail_of_the_slope_keeps_its_digits_in_float32(function, exponent):
    # z^-3 and z^-2 with factors 1, 1, 1 and 2 / pi; the chain rule subtracts two terms
    # that agree to seven digits from z = 1000 on.
    factor = 2 / np.pi if function == "arctan" else 1
    z = 1e5
    slope = slope_of(function)(jnp.array([z, -z]))
    np.testing.assert_allclose(slope, factor * z**-exponent, rtol=3e-5)


@pytest.mark.parametrize("function", ["tanh", "erf", "isru"])
@pytest.mark.parametrize("row", OUTSIDE["gaussian"], ids=lambda row: str(row["sigma"]))
def test_moments_for_gaussian_input(function, row):
    # z ~ N(0, sigma^2): root mean square of f, its elasticity d log RMS / d log sigma
    # = E[f f' z] / E[f^2], and mean slope over slope at zero. Four decimals of a
    # quadrature done elsewhere.
    z = jnp.asarray(row["sigma"] * NODES, jnp.float32)
    y = np.asarray(norm_of(function)(z[:, None])[:, 0], np.float64)
    slope = np.asarray(slope_of(function)(z), np.float64)
    square = gaussian_mean(y**2)
    np.testing.assert_allclose(np.sqrt(square), row["rms"][function], atol=6e-5)
    elasticity = gaussian_mean(y * slope * np.asarray(z)) / square
    expected = row["elasticity"][function]
    np.testing.assert_allclose(elasticity, expected, atol=6e-4)  # three decimals
    if function in row["slope"]:
        mean_slope = gaussian_mean(slope) / SLOPE_AT_ZERO[function]
        expected = row["slope"][function]
        np.testing.assert_allclose(mean_slope, expected, atol=6e-4)


@pytest.mark.parametrize("function", ["tanh", "erf", "isru"])
@pytest.mark.parametrize("value", SATURATION["value"])
def test_where_the_function_reaches(function, value):
    z = SATURATION["value"][value][function]
    y = FUNCTIONS[function](jnp.float32(z))
    tolerance = 6e-5 * jax.grad(FUNCTIONS[function])(z) + 1e-6  # z has four decimals
    np.testing.assert_allclose(y, float(value), atol=float(tolerance), rtol=0)


@pytest.mark.parametrize("function", ["tanh", "erf", "isru"])
@pytest.mark.parametrize("fraction", SATURATION["slope"])
def test_where_the_slope_falls_to_a_fraction(function, fraction):
    z = SATURATION["slope"][fraction][function]
    slope = jax.grad(FUNCTIONS[function])(z)
    relative = slope / SLOPE_AT_ZERO[function]
    np.testing.assert_allclose(relative, float(fraction), rtol=2e-4)


def test_zero_input_passes_its_gradient_on():
    # A zero row must not be dead: sign(0) and the slope of |z| at 0 are both 0.
    for function, slope in SLOPE_AT_ZERO.items():
        norm = norm_of(function)
        dx = jax.grad(lambda x, norm=norm: norm(x)[0])(jnp.zeros(1))
        assert (dx[0] > 0) == bool(slope), function


@pytest.mark.parametrize("function", FUNCTIONS)
def test_gradient_is_finite(function):
    graphdef, params = nnx.split(norm_of(function, 3), nnx.Param)
    loss = lambda p, x: jnp.sum(nnx.merge(graphdef, p)(x))  # noqa: E731
    gradient_at = jax.jit(jax.grad(loss, (0, 1)))
    for scale in (0.0, 1e-20, 1e4, 1e15):
        x = scale * jnp.array([1.0, -0.5, 0.0])
        for gradient in jax.tree.leaves(gradient_at(params, x)):
            assert np.isfinite(gradient).all(), scale


@pytest.mark.parametrize("function", FUNCTIONS)
def test_half_precision_is_rounded_once(function):
    norm = norm_of(function, 64, alpha_init=0.7, shift_init=0.1)
    x = jnp.linspace(-4, 4, 64, dtype=jnp.bfloat16)
    z = 0.7 * np.asarray(x, np.float64) + 0.1
    y = jax.jit(norm)(x)
    assert y.dtype == jnp.bfloat16
    # half a unit in the last place of bfloat16 is up to 2^-8 of the number
    expected = oracle.FUNCTIONS[function](z)
    np.testing.assert_allclose(
        np.asarray(y, np.float64), expected, rtol=1.01 * 2**-8, atol=1e-6
    )


def test_a_fixed_slope_is_no_parameter():
    norm = norm_of("hardtanh", 2, alpha_init=0.25, alpha=False)
    _, params, rest = nnx.split(norm, nnx.Param, ...)
    assert {p[-1] for p, _ in nnx.to_flat_state(params)} == {"shift", "gain", "bias"}
    assert [v.shape for v in jax.tree.leaves(rest)] == [(1,)]
    np.testing.assert_array_equal(norm(jnp.array([2.0, 8.0])), [0.5, 1.0])


def test_without_any_parameter():
    none = dict(alpha=False, shift=False, gain=False, bias=False)
    norm = norm_of("tanh", 2, alpha_init=0.5, **none)
    assert not nnx.to_flat_state(nnx.state(norm, nnx.Param))
    y = norm(jnp.array([0.3, -2.0]))
    np.testing.assert_allclose(y, np.tanh([0.15, -1.0]), rtol=1e-6)


def test_inits_may_be_traced():
    x = jnp.array([0.3, -2.0])
    alphas, shifts = jnp.array([0.1, 0.7]), jnp.array([0.0, -0.4])
    y = jax.vmap(lambda a, s: norm_of("isru", 2, alpha_init=a, shift_init=s)(x))(
        alphas, shifts
    )
    z = np.outer([0.1, 0.7], [0.3, -2.0]) + np.array([[0.0], [-0.4]])
    np.testing.assert_allclose(y, z / np.sqrt(1 + z**2), rtol=1e-6)


@pytest.mark.parametrize(
    "keywords, message",
    [
        ({"function": "sigmoid"}, "function must be one of erf, .* got 'sigmoid'"),
        ({"alpha_init": 0.0}, "alpha_init must be positive and finite, got 0.0"),
        ({"alpha_init": float("nan")}, "alpha_init must be .* got nan"),
        ({"shift_init": float("inf")}, "shift_init must be finite, got inf"),
        ({"shift_init": 0.5, "shift": False}, "without a shift, got 0.5"),
    ],
)
def test_what_cannot_be_is_refused(keywords, message):
    with pytest.raises(ValueError, match=message):
        Pointwise.check(**keywords)


def test_unknown_function_is_refused_when_built_too():
    with pytest.raises(ValueError, match="got 'sigmoid'"):
        norm_of("sigmoid")
