"""What only ScaleNorm promises."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from blocks.norms.scalenorm import ScaleNorm

make = functools.partial(ScaleNorm, rngs=nnx.Rngs(0))


def test_vectors(check_vectors, norm_vectors):
    check_vectors(make(4), norm_vectors["vectors"]["scalenorm"], scale=(2.0,))


def test_starts_at_the_root_of_the_width():
    norm = make(9)
    np.testing.assert_array_equal(norm.scale[...], [3.0])
    y = norm(jax.random.normal(jax.random.key(0), (5, 9)))
    np.testing.assert_allclose(jnp.linalg.norm(y, axis=-1), np.full(5, 3.0), rtol=1e-6)


def test_small_tokens_do_not_shrink():
    x = jnp.array([2.0, -1.0, 3.0, 0.0])
    norm = make(4)
    np.testing.assert_allclose(norm(1e-4 * x), norm(x), rtol=1e-6)


def test_below_the_clamp_it_is_linear():
    x = 1e-7 * jnp.array([3.0, 4.0])  # length 5e-7 below eps 1e-5
    y = make(2, scale_init=2.0)(x)
    np.testing.assert_allclose(y, 2 * x / 1e-5, rtol=1e-6)


def test_scale_init_may_be_traced():
    x = jnp.array([3.0, 4.0])
    y = jax.vmap(lambda s: make(2, scale_init=s)(x))(jnp.array([1.0, 10.0]))
    np.testing.assert_allclose(y, [[0.6, 0.8], [6.0, 8.0]], rtol=1e-6)


@pytest.mark.parametrize("scale", [float("inf"), float("nan")])
def test_scale_that_is_not_finite_is_refused(scale):
    with pytest.raises(ValueError, match=f"scale_init must be finite, got {scale}"):
        ScaleNorm.check(scale_init=scale)


@pytest.mark.parametrize("eps", [0.0, 1e-13, float("nan")])
def test_eps_that_cannot_protect_the_root_is_refused(eps):
    with pytest.raises(ValueError, match="eps must be"):
        make(4, eps=eps)
