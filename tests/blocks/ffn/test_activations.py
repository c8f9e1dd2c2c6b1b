"""Elementwise functions against formulas, torch and transformers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from blocks.ffn.activations import ACTIVATIONS, activation_of, check_activation
from blocks.oracle import ffn as oracle

OURS = ("gelu", "gelu_erf", "quick_gelu", "relu", "relu2", "silu", "sqrtsoftplus")


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_they_are_elementwise(name):
    check_activation(name)
    function = activation_of(name)
    x = jnp.array([-2.0, -0.3, 0.0, 0.4, 3.0])
    np.testing.assert_allclose(function(x), [function(v) for v in x], rtol=1e-6)


@pytest.mark.parametrize("name", OURS)
def test_equals_the_oracle(float64, name):
    x = np.linspace(-30, 30, 601)
    y = activation_of(name)(jnp.asarray(x))
    assert y.dtype == jnp.float64
    np.testing.assert_allclose(y, getattr(oracle, name)(x), rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("rows", ["normal", "clamped", "large", "edges"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize(
    "name, case",
    [
        ("gelu_erf", "act_gelu"),
        ("gelu", "act_gelu_new"),
        ("quick_gelu", "act_quick_gelu"),
        ("relu2", "act_relu2"),
        ("sqrtsoftplus", "act_sqrtsoftplus"),
    ],
)
def test_equals_torch(golden_ffn, half_tolerance, name, case, dtype, rows):
    arrays = golden_ffn(f"units/{case}/{dtype}/{rows}")
    x = arrays["in.x"]

    def rounded(x):
        return activation_of(name)(x.astype(jnp.float32)).astype(x.dtype)

    y, pull = jax.vjp(rounded, x)
    (dx,) = pull(arrays["dy"])
    for ours, theirs in ((y, arrays["out"]), (dx, arrays["grad.x"])):
        ours = np.asarray(ours, np.float64)
        theirs = np.asarray(theirs, np.float64)
        # torch overflows relu2 in float16, and its gradients of gelu_new in float16
        # and of sqrtsoftplus are NaN where an inner value leaves the range.
        finite = np.isfinite(theirs)
        assert finite.all() or case in ("act_gelu_new", "act_relu2", "act_sqrtsoftplus")
        if case == "act_relu2":
            np.testing.assert_array_equal(np.isfinite(ours), finite)
        else:
            assert np.isfinite(ours).all()
        allowed = half_tolerance[dtype] * np.abs(theirs[finite]).max()
        np.testing.assert_allclose(ours[finite], theirs[finite], rtol=0, atol=allowed)


def test_quick_gelu_is_within_two_percent_of_gelu():
    # 4001 points on [-6, 6]: at most 0.0203348655, at z = +-2.271.
    z = np.linspace(-6, 6, 4001)
    x = jnp.asarray(z, jnp.float32)
    difference = np.abs(activation_of("quick_gelu")(x) - activation_of("gelu_erf")(x))
    np.testing.assert_allclose(difference.max(), 0.0203348655, rtol=1e-4)
    assert abs(z[difference.argmax()]) == pytest.approx(2.271, abs=2e-3)


@pytest.mark.parametrize("x", [-300.0, -200.0, -104.0, -88.0, -40.0, -39.9, 0.0, 300.0])
def test_sqrtsoftplus_has_its_gradient_far_below_zero(x, float64):
    # d sqrt(s) = sigmoid / (2 sqrt(s)), which tends to e^(x / 2) / 2.
    gradient = jax.grad(activation_of("sqrtsoftplus"))(jnp.float64(x))
    tail = np.exp(x / 2) / 2
    exact = tail if x < -38 else oracle.sigmoid(x) / (2 * oracle.sqrtsoftplus(x))
    np.testing.assert_allclose(gradient, exact, rtol=1e-12)


@pytest.mark.parametrize(
    "name, near", [("gelu_er", "gelu_erf"), ("quickgelu", "quick_gelu")]
)
def test_unknown_names_get_the_nearest(name, near):
    with pytest.raises(ValueError, match=f"did you mean '{near}'"):
        activation_of(name)
