"""What only DyISRU promises."""

import json
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from blocks.norms.dyisru import DyISRU
from blocks.norms.dyt import DyT
from blocks.norms.rmsnorm import RMSNorm

GOLDEN = Path(__file__).parents[2] / "golden" / "pointwise_vectors.json"
VECTORS = json.loads(GOLDEN.read_text())["vectors"]
RHO = math.log(math.exp(4) - 1)  # softplus(3.981514553) = 4


def test_vectors(check_vectors):
    # The vectors have no floor: one far below nine digits of B.
    norm = DyISRU(4, floor=1e-12, rngs=nnx.Rngs(0))
    check_vectors(norm, VECTORS["dyisru"], rho=(RHO,))


@pytest.mark.parametrize("row, scale", [("A", 1.0), ("C", 1e3), ("D", 1e-4)])
def test_gradient_in_beta_itself(row, scale, float64):
    # d loss / d rho = (d loss / d B) * sigmoid(rho)
    x = scale * jnp.array([2.0, -1.0, 3.0, 0.0])

    def loss(beta):
        norm = DyISRU(4, floor=1e-12, rngs=nnx.Rngs(0))
        norm.gain.set_value(jnp.array([1.5, 0.5, -1.0, 2.0]))
        norm.rho.set_value(jnp.log(jnp.expm1(beta)))
        return jnp.dot(jnp.array([1.0, -2.0, 0.5, 3.0]), norm(x))

    gradient = jax.grad(loss)(jnp.array([4.0]))
    expected = VECTORS["dyisru_beta"][row]["beta"]
    np.testing.assert_allclose(gradient, expected, rtol=6e-9)


@pytest.mark.parametrize("beta", [1e-3, 0.34, 4.0, 100.0])
def test_beta_begins_at_its_initial_value(beta):
    norm = DyISRU(1, beta_init=beta, rngs=nnx.Rngs(0))
    slope = jax.grad(lambda x: norm(x)[0])(jnp.zeros(1))
    np.testing.assert_allclose(slope, [1 / math.sqrt(beta)], rtol=1e-5)


def test_rho_begins_at_3_9815_for_four():
    rho = DyISRU(1, floor=1e-12, rngs=nnx.Rngs(0)).rho[...]
    np.testing.assert_allclose(rho, [3.981514553], rtol=1e-7)


def test_slope_at_zero_is_that_of_dyt_with_one_over_root_beta():
    slopes = [
        jax.grad(lambda x, norm=norm: norm(x)[0])(jnp.zeros(1))
        for norm in (DyISRU(1, rngs=nnx.Rngs(0)), DyT(1, rngs=nnx.Rngs(0)))
    ]
    np.testing.assert_allclose(slopes[0], slopes[1], rtol=1e-6)


def test_is_rmsnorm_seen_from_one_feature():
    # Other features fixed: sqrt(d) x / sqrt(B + x^2), B = sum of their squares
    # (+ d eps). arXiv 2503.21708.
    rest = jnp.array([1.5, -0.5, 2.0])
    beta = float(jnp.sum(rest**2)) + 4 * 1e-6
    one = DyISRU(1, beta_init=beta, gain_init=2.0, rngs=nnx.Rngs(0))
    all_of_them = RMSNorm(4, rngs=nnx.Rngs(0))
    x = jnp.linspace(-5, 5, 21)
    whole = jax.vmap(lambda v: all_of_them(jnp.concatenate([v[None], rest]))[0])(x)
    np.testing.assert_allclose(one(x[:, None])[:, 0], whole, rtol=1e-5, atol=1e-6)


def test_gradient_survives_where_that_of_tanh_is_zero():
    x = jnp.full(1, 1000.0)
    of = lambda norm: jax.grad(lambda x: norm(x)[0])(x)[0]  # noqa: E731
    assert of(DyT(1, rngs=nnx.Rngs(0))) == 0
    np.testing.assert_allclose(of(DyISRU(1, rngs=nnx.Rngs(0))), 4e-9, rtol=1e-4)


def test_best_constant_for_a_gaussian_token():
    # 200,000 samples of numpy.random.default_rng(5): x / sqrt(B + x^2) is nearest to
    # x / RMS(x) at B = 0.34, with mean square error 0.178642.
    x = np.random.default_rng(5).standard_normal(200_000)
    target = jnp.asarray(x / np.sqrt(np.mean(x**2)), jnp.float32)
    x = jnp.asarray(x, jnp.float32)[:, None]

    def error(beta):
        y = DyISRU(1, beta_init=beta, rngs=nnx.Rngs(0))(x)[:, 0]
        return jnp.mean(jnp.square(y - target))

    errors = jax.jit(jax.vmap(error))(jnp.array([0.3, 0.33, 0.34, 0.35, 4.0]))
    assert int(jnp.argmin(errors)) == 2
    np.testing.assert_allclose(errors[2], 0.178642, atol=1e-6)


def test_floor_holds_when_rho_runs_away():
    norm = DyISRU(2, floor=1e-4, rngs=nnx.Rngs(0))
    norm.rho.set_value(jnp.array([-200.0]))
    value, slope = jax.value_and_grad(lambda x: norm(x)[0])(jnp.zeros(2))
    assert value == 0
    np.testing.assert_allclose(slope, [100.0, 0.0], rtol=1e-5)


def test_inits_may_be_traced():
    x = jnp.array([0.3, -2.0])
    betas, gains = jnp.array([0.5, 9.0]), jnp.array([1.0, 3.0])
    y = jax.vmap(lambda b, g: DyISRU(2, beta_init=b, gain_init=g, rngs=nnx.Rngs(0))(x))(
        betas, gains
    )
    expected = [
        [g * v / math.sqrt(b + v * v) for v in (0.3, -2.0)]
        for b, g in ((0.5, 1.0), (9.0, 3.0))
    ]
    np.testing.assert_allclose(y, expected, rtol=2e-6)


def test_without_bias():
    assert DyISRU(2, bias=False, rngs=nnx.Rngs(0)).bias is None


@pytest.mark.parametrize(
    "keywords, message",
    [
        ({"beta_init": 0.0}, "beta_init must be finite and at least .*=2e-06, got 0.0"),
        ({"beta_init": 1e-6}, "at least 2 floor=2e-06, got 1e-06"),
        ({"beta_init": float("inf")}, "beta_init must be .* got inf"),
        ({"floor": 0.0}, "floor must be finite .* got 0.0"),
        ({"gain_init": float("nan")}, "gain_init must be finite, got nan"),
    ],
)
def test_what_cannot_be_is_refused(keywords, message):
    with pytest.raises(ValueError, match=message):
        DyISRU.check(**keywords)
