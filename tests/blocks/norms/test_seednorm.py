"""What only SeeDNorm promises."""

import json
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from blocks.norms.rmsnorm import RMSNorm
from blocks.norms.seednorm import SeeDNorm

GOLDEN = Path(__file__).parents[2] / "golden" / "pointwise_vectors.json"
VECTORS = json.loads(GOLDEN.read_text())["vectors"]


def test_vectors(check_vectors):
    norm = SeeDNorm(4, rngs=nnx.Rngs(0))
    alphas = {"alpha": (1, 1, 1, 1), "beta": (0.1, -0.2, 0.05, 0.3)}
    check_vectors(norm, VECTORS["seednorm"], **alphas)


def test_begins_as_rmsnorm():
    x = jax.random.normal(jax.random.key(0), (5, 8))
    y = SeeDNorm(8, rngs=nnx.Rngs(0))(x)
    np.testing.assert_allclose(y, RMSNorm(8, rngs=nnx.Rngs(0))(x), rtol=1e-6)


def test_alpha_waits_for_beta_in_the_first_step():
    graphdef, params = nnx.split(SeeDNorm(4, rngs=nnx.Rngs(0)), nnx.Param)
    x = jnp.array([[1.0, 2.0, -1.0, 0.5]])
    gradient = jax.grad(lambda p: jnp.sum(nnx.merge(graphdef, p)(x) ** 2))(params)
    assert (gradient["alpha"][...] == 0).all()
    assert (gradient["beta"][...] != 0).all()


def test_gain_of_a_token_is_gain_plus_alpha_times_tanh():
    norm = SeeDNorm(2, eps=1e-12, rngs=nnx.Rngs(0))
    norm.alpha.set_value(jnp.array([0.5, -2.0]))
    norm.beta.set_value(jnp.array([0.25, 0.0]))
    y = norm(jnp.array([[3.0, 4.0], [-30.0, 40.0]]))
    first = np.tanh(0.75)
    root = math.sqrt(12.5)
    np.testing.assert_allclose(
        y[0], [(1 + 0.5 * first) * 3 / root, (1 - 2 * first) * 4 / root], rtol=1e-5
    )
    np.testing.assert_allclose(y[1], [0.5 * -3 / root, 3 * 4 / root], rtol=1e-5)


def test_scale_of_the_token_shows_in_its_direction_only():
    norm = SeeDNorm(3, eps=1e-12, rngs=nnx.Rngs(0))
    norm.beta.set_value(jnp.array([0.1, 0.0, 0.0]))
    across, along = jnp.array([0.0, 2.0, 1.0]), jnp.array([1.0, 2.0, 1.0])
    np.testing.assert_allclose(norm(10 * across), norm(across), rtol=1e-5)
    assert (jnp.abs(norm(10 * along) - norm(along)) > 0.1).all()


def test_alpha_of_zero_could_never_learn():
    with pytest.raises(ValueError, match="alpha_init must be finite and not 0"):
        SeeDNorm.check(alpha_init=0.0)


def test_alpha_is_a_gain_and_beta_a_slope():
    state = nnx.state(SeeDNorm(4, rngs=nnx.Rngs(0)), nnx.Param)
    roles = {str(p[-1]): v.get_metadata()["role"] for p, v in nnx.to_flat_state(state)}
    assert roles == {"gain": "gain", "alpha": "gain", "beta": "alpha"}


@pytest.mark.parametrize("eps", [0.0, -1e-5, float("inf"), float("nan")])
def test_eps_that_cannot_protect_the_root_is_refused(eps):
    with pytest.raises(ValueError, match="eps must be"):
        SeeDNorm.check(eps=eps)
    with pytest.raises(ValueError, match="eps must be"):
        SeeDNorm(4, eps=eps, rngs=nnx.Rngs(0))


def test_alpha_init_may_be_traced():
    x, alphas = jnp.array([3.0, 4.0]), jnp.array([1.0, 2.0])

    def gained(alpha):
        norm = SeeDNorm(2, alpha_init=alpha, eps=1e-12, rngs=nnx.Rngs(0))
        norm.beta.set_value(jnp.array([10.0, 10.0]))  # tanh(70) = 1
        return norm(x)

    y = jax.vmap(gained)(alphas)
    token = np.array([3.0, 4.0]) / math.sqrt(12.5)
    np.testing.assert_allclose(y, np.outer([2, 3], token), rtol=1e-5)
