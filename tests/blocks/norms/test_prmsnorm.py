"""What only pRMSNorm promises."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from blocks.norms.prmsnorm import PRMSNorm
from blocks.norms.rmsnorm import RMSNorm

make = functools.partial(PRMSNorm, rngs=nnx.Rngs(0))


def test_vectors(check_vectors, norm_vectors):
    norm = make(4, p=0.5, eps=1e-6)
    check_vectors(norm, norm_vectors["vectors"]["prmsnorm"])


def test_only_the_first_features_couple():
    x = jax.random.normal(jax.random.key(0), (8,))
    jacobian = jax.jacobian(make(8, p=0.25))(x)
    off_diagonal = jacobian - jnp.diag(jnp.diag(jacobian))
    assert (off_diagonal[:, :2] != 0).any(axis=0).all()
    assert (off_diagonal[:, 2:] == 0).all()


def test_features_that_are_not_counted_are_not_bounded():
    y = make(4, p=0.5)(jnp.array([1.0, 1.0, 1e6, 0.0]))
    np.testing.assert_allclose(y, [1, 1, 1e6, 0], rtol=1e-6)


@pytest.mark.parametrize("eps_mode", ["inside", "outside", "clamp"])
def test_all_features_counted_is_rmsnorm(eps_mode):
    x = 1e-3 * jax.random.normal(jax.random.key(0), (3, 8))
    whole = make(8, p=1.0, eps=1e-6, eps_mode=eps_mode)
    plain = RMSNorm(8, eps=1e-6, eps_mode=eps_mode, rngs=nnx.Rngs(0))
    np.testing.assert_allclose(whole(x), plain(x), rtol=1e-6)


@pytest.mark.parametrize(
    "d_model, p, count", [(16, 1 / 16, 1), (31, 1 / 16, 1), (7, 0.5, 3)]
)
def test_the_number_of_features_is_rounded_down(d_model, p, count):
    assert make(d_model, p=p).n_counted == count


def test_less_than_one_feature_is_refused():
    with pytest.raises(ValueError, match="at least one feature, got 0.0625 . 15"):
        make(15)


@pytest.mark.parametrize("p", [0.0, -0.1, 1.01, float("nan")])
def test_what_is_no_fraction_is_refused(p):
    with pytest.raises(ValueError, match="p must be"):
        PRMSNorm.check(p=p)
