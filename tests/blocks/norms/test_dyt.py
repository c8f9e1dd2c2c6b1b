"""What only DyT promises."""

import json
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from blocks.norms.dyt import DyT

GOLDEN = Path(__file__).parents[2] / "golden" / "pointwise_vectors.json"
OUTSIDE = json.loads(GOLDEN.read_text())

NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(200)  # for means over N(0, 1)


def gaussian_mean(values):
    return np.sum(WEIGHTS * np.asarray(values, np.float64)) / np.sqrt(2 * np.pi)


def test_vectors(check_vectors):
    check_vectors(DyT(4, rngs=nnx.Rngs(0)), OUTSIDE["vectors"]["dyt"], alpha=(0.5,))


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


@pytest.mark.parametrize("value", ["0.9", "0.95", "0.99", "0.999"])
def test_value_where_tanh_is_nearly_flat(value):
    z = OUTSIDE["saturation"]["value"][value]["tanh"]
    y = DyT(1, alpha_init=2.0, rngs=nnx.Rngs(0))(jnp.full(1, z / 2))
    np.testing.assert_allclose(y, [float(value)], atol=2e-5)


def test_exactly_one_in_float32_from_8_to_9():
    # 8.0 on CPU; rounded correctly 9.01, where 1 - tanh is half a unit of the last digit.
    grid = jnp.arange(0, 12, 1 / 64)[:, None]
    y = DyT(1, alpha_init=1.0, rngs=nnx.Rngs(0))(grid)[:, 0]
    assert 7.9 < float(grid[jnp.argmax(y == 1), 0]) < 9.1


def test_tanh_is_not_taken_in_bfloat16():
    # In bfloat16 arithmetic tanh(3.46875) is exactly 1 and the tail is flat.
    norm = DyT(1, rngs=nnx.Rngs(0))
    values = {"alpha": 1.0, "gain": 1024.0, "bias": -1024.0}
    for name, value in values.items():
        getattr(norm, name).set_value(jnp.full(1, value, jnp.bfloat16))
    y = norm(jnp.full(1, 3.46875, jnp.bfloat16)).astype(jnp.float32)
    np.testing.assert_allclose(y, [-1024 * (1 - math.tanh(3.46875))], rtol=4e-3)


def test_best_slope_for_a_gaussian_token():
    # 200,000 samples of numpy.random.default_rng(5), alpha in linspace(0.3, 2, 171):
    # tanh(alpha x) is nearest to x / RMS(x) at 1.43, with mean square error 0.161704.
    x = np.random.default_rng(5).standard_normal(200_000)
    target = jnp.asarray(x / np.sqrt(np.mean(x**2)), jnp.float32)
    x = jnp.asarray(x, jnp.float32)[:, None]

    def error(alpha):
        y = DyT(1, alpha_init=alpha, rngs=nnx.Rngs(0))(x)[:, 0]
        return jnp.mean(jnp.square(y - target))

    errors = jax.jit(jax.vmap(error))(jnp.array([0.3, 1.0, 1.42, 1.43, 1.44, 2.0]))
    assert int(jnp.argmin(errors)) == 3
    np.testing.assert_allclose(errors[3], 0.161704, atol=1e-6)
    # the neighbours, in no order, lie 3.5e-6 and 1.06e-5 above
    np.testing.assert_allclose(
        np.sort(errors[jnp.array([2, 4])]), [0.1617073, 0.1617143], atol=5e-7
    )


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


@pytest.mark.parametrize(
    "d_model, site, alpha",
    [(4096, "attn", 0.8), (4096, "ffn", 0.2), (64, "final", 1.0), (64, "inner", 0.5)],
)
def test_auto_takes_the_published_slope(d_model, site, alpha):
    norm = DyT(d_model, alpha_init="auto", site=site, rngs=nnx.Rngs(0))
    np.testing.assert_allclose(norm.alpha[...], [alpha], rtol=1e-6)


def test_auto_without_a_site_is_refused():
    with pytest.raises(ValueError, match="expected site=.*got None"):
        DyT(64, alpha_init="auto", rngs=nnx.Rngs(0))


@pytest.mark.parametrize("alpha", ["0.5", "Auto", ""])
def test_alpha_that_is_another_word_is_refused(alpha):
    with pytest.raises(ValueError, match=f"a number or 'auto', got '{alpha}'"):
        DyT.check(alpha_init=alpha)
    with pytest.raises(ValueError, match=f"a number or 'auto', got '{alpha}'"):
        DyT(4, alpha_init=alpha, site="attn", rngs=nnx.Rngs(0))


def test_without_bias():
    norm = DyT(2, bias=False, rngs=nnx.Rngs(0))
    assert {str(p[-1]) for p, _ in nnx.to_flat_state(nnx.state(norm))} == {
        "alpha",
        "gain",
    }
    x = jnp.array([0.3, -2.0])
    np.testing.assert_allclose(norm(x), np.tanh([0.15, -1.0]), rtol=1e-6)
