"""What only FixNorm promises."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from blocks.norms.fixnorm import FixNorm

make = functools.partial(FixNorm, rngs=nnx.Rngs(0))


def test_vectors(check_vectors, norm_vectors):
    # At width 4 the length is 2, the scale of these vectors; rows lie above both clamps.
    vectors = {
        row: {"y": expected["y"], "dx": expected["dx"]}
        for row, expected in norm_vectors["vectors"]["scalenorm"].items()
    }
    check_vectors(make(4), vectors)


def test_rows_have_the_length_of_the_root_of_the_width():
    table = jax.random.uniform(jax.random.key(0), (7, 16), minval=-0.01, maxval=0.01)
    length = jnp.linalg.norm(make(16)(table), axis=-1)
    np.testing.assert_allclose(length, np.full(7, 4.0), rtol=1e-6)


def test_after_the_look_up_is_the_same_as_in_the_table():
    norm = make(8)
    table = 0.01 * jax.random.normal(jax.random.key(0), (5, 8))
    tokens = jnp.array([3, 0, 3, 4])
    weights = jax.random.normal(jax.random.key(1), (4, 8))
    after = lambda table: jnp.sum(weights * norm(table[tokens]))  # noqa: E731
    before = lambda table: jnp.sum(weights * norm(table)[tokens])  # noqa: E731
    for a, b in zip(
        jax.value_and_grad(after)(table),
        jax.value_and_grad(before)(table),
        strict=True,
    ):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-3)


def test_nothing_is_learned():
    assert not jax.tree.leaves(nnx.state(make(4)))


@pytest.mark.parametrize("eps", [0.0, 1e-13, float("nan")])
def test_eps_that_cannot_protect_the_root_is_refused(eps):
    with pytest.raises(ValueError, match="eps must be"):
        make(4, eps=eps)
