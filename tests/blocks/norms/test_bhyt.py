"""What only BHyT promises."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from blocks.norms.bhyt import BHyT

GOLDEN = Path(__file__).parents[2] / "golden" / "pointwise_vectors.json"
VECTORS = json.loads(GOLDEN.read_text())["vectors"]


def test_vectors(check_vectors):
    check_vectors(BHyT(4, rngs=nnx.Rngs(0)), VECTORS["bhyt"], lam=(2.0,))


def test_root_mean_square_begins_at_0_19():
    # lam / kappa = 0.2: tanh(0.2 n), n ~ N(0, 1), has root mean square 0.1926.
    x = 7 * jax.random.normal(jax.random.key(0), (64, 512))
    y = BHyT(512, rngs=nnx.Rngs(0))(x)
    np.testing.assert_allclose(jnp.sqrt(jnp.mean(y**2)), 0.19, atol=0.005)


def test_scale_of_the_token_does_not_show():
    norm = BHyT(8, lam_init=10.0, rngs=nnx.Rngs(0))
    x = jax.random.normal(jax.random.key(0), (3, 8))
    np.testing.assert_allclose(norm(1000 * x), norm(x), rtol=1e-5, atol=1e-6)


def test_never_above_the_gain():
    # The largest argument of the tanh is lam sqrt(d) / kappa, for a one-hot token.
    norm = BHyT(16, lam_init=10.0, rngs=nnx.Rngs(0))
    y = norm(1e6 * jnp.eye(16))
    np.testing.assert_allclose(jnp.diag(y), jnp.full(16, np.tanh(4.0)), rtol=1e-6)
    assert (jnp.abs(y) <= 1).all()


def test_float16_squares_do_not_overflow():
    norm = BHyT(4, lam_init=10.0, rngs=nnx.Rngs(0))
    y = norm(jnp.array([300, -300, 300, 300], jnp.float16)).astype(jnp.float32)
    np.testing.assert_allclose(y, np.tanh([1, -1, 1, 1]), rtol=1e-3)


def test_eps_is_inside_the_root():
    # With mean square equal to eps the argument is lam / (kappa sqrt(2)).
    norm = BHyT(2, lam_init=10.0, eps=1e-4, rngs=nnx.Rngs(0))
    y = norm(jnp.array([1e-2, -1e-2]))
    np.testing.assert_allclose(y, np.tanh([0.5**0.5, -(0.5**0.5)]), rtol=1e-5)


def test_lam_init_may_be_traced():
    x = jnp.array([3.0, 4.0])
    lams = jnp.array([1.0, 5.0])
    y = jax.vmap(lambda a: BHyT(2, lam_init=a, rngs=nnx.Rngs(0))(x))(lams)
    token = np.array([3.0, 4.0]) / np.sqrt(12.5)
    np.testing.assert_allclose(y, np.tanh(np.outer([0.1, 0.5], token)), rtol=1e-6)


@pytest.mark.parametrize("name", ["lam_init", "kappa", "eps"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("inf"), float("nan")])
def test_what_cannot_be_is_refused(name, value):
    with pytest.raises(ValueError, match=f"{name} must be .* got {value}"):
        BHyT.check(**{name: value})
