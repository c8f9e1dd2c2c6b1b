"""What is measured of a norm, against NumPy and against a table for Gaussian inputs."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from blocks.norms.bhyt import BHyT
from blocks.norms.derf import Derf
from blocks.norms.dyisru import DyISRU
from blocks.norms.dyt import DyT
from blocks.norms.ema_blend import EMABlendInput, EMABlendOutput
from blocks.norms.looks import look_at_norm
from blocks.norms.pointwise import Pointwise
from blocks.norms.rmsnorm import RMSNorm
from blocks.oracle import looks as oracle

OF_ANY = {"x_rms", "x_token_rms", "x_max", "x_kurtosis"}
GAIN = np.linspace(-0.5, 2, 32)

# norm, and what it is for the oracle
MAPS = {
    "derf": (functools.partial(Derf, alpha_init=0.7, shift_init=0.3), "erf", 0.7, 0.3),
    "dyt": (functools.partial(DyT, alpha_init=0.7), "tanh", 0.7, 0.0),
    "dyisru": (functools.partial(DyISRU, beta_init=4.0), "isru", 0.5, 0.0),
    "hardtanh": (
        functools.partial(
            Pointwise, function="hardtanh", alpha_init=0.7, shift_init=-0.2
        ),
        "hardtanh",
        0.7,
        -0.2,
    ),
    "arctan": (
        functools.partial(
            Pointwise, function="arctan", alpha_init=4.0, alpha=False, shift=False
        ),
        "arctan",
        4.0,
        0.0,
    ),
}

look = jax.jit(look_at_norm)


def inputs(dtype=np.float64):
    """Tokens of sizes from 0.1 to 30, off centre."""
    rng = np.random.default_rng(0)
    sizes = np.geomspace(0.1, 30, 64)[:, None]
    return (sizes * (rng.normal(size=(64, 32)) + 0.2)).astype(dtype)


def measured(make, x, **keywords):
    norm = make(x.shape[-1], rngs=nnx.Rngs(0), **keywords)
    if getattr(norm, "gain", None) is not None:
        norm.gain[...] = jnp.asarray(GAIN, norm.gain[...].dtype)
    return {k: np.asarray(v) for k, v in look(norm, x).items()}


@pytest.mark.parametrize("name", MAPS)
def test_every_metric_is_that_of_numpy(name):
    make, function, alpha, shift = MAPS[name]
    x = inputs()
    with jax.enable_x64(True):
        found = measured(make, jnp.asarray(x))
    # The slope is a float32 parameter.
    alpha, shift = float(np.float32(alpha)), float(np.float32(shift))
    expected = oracle.scale_of(x) | oracle.look_at_map(
        x, function=function, alpha=alpha, shift=shift
    )
    expected["mean_abs_g"] = np.abs(GAIN).mean()
    assert found.keys() == expected.keys()
    for metric, value in expected.items():
        np.testing.assert_allclose(
            found[metric], value, rtol=1e-6, atol=1e-9, err_msg=metric
        )
    assert 0 < expected["dead10"] < 1
    assert 0 < expected["sat99"] < 1


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_metrics_are_float32_whatever_the_activations(name, dtype):
    make, function, alpha, shift = MAPS[name]
    x = jnp.asarray(inputs(), dtype)
    found = measured(make, x)
    assert {v.dtype for v in found.values()} == {np.dtype("float32")}
    wide = np.asarray(x.astype(jnp.float32), np.float64)
    expected = oracle.look_at_map(wide, function=function, alpha=alpha, shift=shift)
    for metric in ("elasticity", "gain_eff", "sat99", "lin_cos", "scale_slope_r2"):
        # elasticity: a difference of logarithms of 0.02 at most, 1e-7 each
        np.testing.assert_allclose(found[metric], expected[metric], atol=3e-5)


# Rows for z ~ N(0, sigma^2), by quadrature; for erf the mean slope ratio is exactly
# 1 / sqrt(1 + 2 sigma^2). sigma: E of tanh, erf, isru; mean f'/f'(0) of tanh, erf;
# P(|f| > 0.99) of tanh, erf
TABLE = {
    0.3: (0.862, 0.854, 0.825, 0.923, 0.921, 0.0, 0.0),
    1.0: (0.461, 0.409, 0.452, 0.606, 0.577, 0.008, 0.069),
    2.0: (0.242, 0.197, 0.265, 0.365, 0.333, 0.186, 0.363),
    5.0: (0.090, 0.071, 0.117, 0.157, 0.140, 0.597, 0.716),
}


@pytest.mark.parametrize("sigma", TABLE)
def test_gaussian_inputs_give_the_published_saturation(sigma):
    """512 tokens of 512: sampling errors of 1e-3, half a unit of the table 5e-4."""
    x = np.random.default_rng(1).normal(size=(512, 512)).astype(np.float32)
    x = jnp.asarray(x * (sigma / 0.5))
    elastic, gains, saturated = TABLE[sigma][:3], TABLE[sigma][3:5], TABLE[sigma][5:]
    makes = (DyT, Derf, functools.partial(DyISRU, beta_init=4.0))
    found = [look(make(512, rngs=nnx.Rngs(0)), x) for make in makes]
    for seen, expected in zip(found, elastic, strict=True):
        np.testing.assert_allclose(seen["sigma_z"], sigma, rtol=5e-3)
        np.testing.assert_allclose(seen["elasticity"], expected, atol=2.5e-3)
        np.testing.assert_allclose(seen["x_kurtosis"], 3, atol=0.03)
    for seen, gain, share in zip(found, gains, saturated, strict=False):
        np.testing.assert_allclose(seen["gain_eff"], gain, atol=2.5e-3)
        np.testing.assert_allclose(seen["sat99"], share, atol=2.5e-3)
    exact = (1 + 2 * sigma**2) ** -0.5
    np.testing.assert_allclose(found[1]["gain_eff"], exact, atol=2e-3)


def test_where_a_function_counts_as_saturated_dead_and_one():
    """tanh z = 0.99 at 2.6467, erf at 1.8214; f' a tenth of f'(0) at 1.8184 and 1.5174,
    a hundredth at 2.9932 and 2.1460."""
    edges = {
        DyT: {"sat99": 2.6467, "dead10": 1.8184, "dead01": 2.9932},
        Derf: {"sat99": 1.8214, "dead10": 1.5174, "dead01": 2.1460},
    }
    for make, places in edges.items():
        norm = make(2, alpha_init=1.0, rngs=nnx.Rngs(0))
        for metric, edge in places.items():
            for sign in (-1, 1):
                x = jnp.asarray([[sign * (edge - 2e-4), sign * (edge + 2e-4)]])
                assert look(norm, x)[metric] == 0.5, (metric, edge)


def test_a_norm_without_a_map_shows_its_input_and_gain():
    assert measured(RMSNorm, jnp.ones((2, 32))).keys() == OF_ANY | {"mean_abs_g"}
    # its slope depends on the token: no function of one number
    assert measured(BHyT, jnp.ones((2, 32))).keys() == OF_ANY | {"mean_abs_g"}
    blend = measured(EMABlendOutput, jnp.ones((2, 32)))
    assert blend.keys() == OF_ANY | {"mean_abs_g"}
    plain = measured(functools.partial(RMSNorm, gain="none"), jnp.ones((2, 32)))
    assert plain.keys() == OF_ANY


def test_a_norm_of_ones_own_needs_z_and_f_only():
    class Mine(nnx.Module):
        def z(self, x):
            return 3 * x + 1

        def f(self, z):
            return z / 2

    x = jnp.asarray(inputs(np.float32))
    found = look(Mine(), x)
    for metric, value in {
        "alpha": 3, "shift": 1, "gain_eff": 1, "lin_cos": 1, "dead10": 0,
    }.items():  # fmt: skip
        np.testing.assert_allclose(found[metric], value, rtol=1e-5, err_msg=metric)


def test_a_running_scale_is_part_of_the_slope_and_is_not_moved():
    x = jnp.asarray(inputs(np.float32))
    norm = EMABlendInput(32, alpha_init=0.5, blend=1.0, rngs=nnx.Rngs(0))
    first = look_at_norm(norm, x)  # not jitted: it would move a copy
    assert norm.rms[...] == 0
    rms = np.sqrt(np.mean(np.square(np.asarray(x, np.float64))))
    np.testing.assert_allclose(first["alpha"], 0.5 / (rms + 1e-6), rtol=1e-5)
    norm.rms[...] = jnp.full((1,), 4.0)
    np.testing.assert_allclose(look(norm, x)["alpha"], 0.125, rtol=1e-5)


def test_a_map_that_is_all_zero_gives_no_number_and_no_error():
    found = measured(DyT, jnp.zeros((4, 32)))
    assert found["x_rms"] == found["sat99"] == 0
    assert np.isnan([found["alpha"], found["scale_slope"]]).all()


def test_nothing_measured_has_a_gradient():
    """In x, or in a parameter of z, of f or beside them."""
    x = jnp.asarray(inputs(np.float32))

    class Mine(nnx.Module):
        def __init__(self, inner, outer, gain):
            self.inner, self.outer = nnx.Param(inner), nnx.Param(outer)
            self.gain = nnx.Param(gain)

        def z(self, x):
            return self.inner[...] * x

        def f(self, z):
            return jnp.tanh(self.outer[...] * z)

    def total(x, *params):
        return sum(look_at_norm(Mine(*params), x).values())

    params = (jnp.ones(1), 2 * jnp.ones(1), jnp.ones(32))
    for gradient in jax.jit(jax.grad(total, argnums=(0, 1, 2, 3)))(x, *params):
        assert not gradient.any()
