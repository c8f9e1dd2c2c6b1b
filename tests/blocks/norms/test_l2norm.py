"""What only L2Norm promises."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from blocks.norms.l2norm import L2Norm

make = functools.partial(L2Norm, rngs=nnx.Rngs(0))


def test_values_and_gradients_near_zero(float64):
    # 60-digit arithmetic: eps 1e-6 with a sum of squares of 2.5e-7.
    norm = make(2, eps=1e-6)
    y, pull = jax.vjp(norm, jnp.array([3e-4, 4e-4]))
    np.testing.assert_allclose(y, [0.268328, 0.357771], atol=5e-7)
    (dx,) = pull(jnp.array([1.0, -2.0]))
    np.testing.assert_allclose(dx, [1001.758454, -1645.746031], rtol=1e-9)


def test_at_zero(float64):
    y, pull = jax.vjp(make(2, eps=1e-6), jnp.zeros(2))
    np.testing.assert_array_equal(y, [0, 0])
    np.testing.assert_allclose(pull(jnp.array([1.0, -2.0]))[0], [1000, -2000])


@pytest.mark.parametrize(
    "scale, dq",
    [
        (1.0, (0.3584, -0.2688)),
        (1e3, (3.584e-4, -2.688e-4)),
        (1e-4, (3584, -2688)),
    ],
)
def test_logit_of_normalized_queries_and_keys(scale, dq):
    # arXiv 2010.04245: logit = tau * cos; cos of (3, 4) and (4, 3) is 24 / 25, tau 8.
    norm = make(2, eps_mode="clamp")
    logit = lambda q, k: 8 * norm(q) @ norm(k)  # noqa: E731
    q, k = scale * jnp.array([3.0, 4.0]), jnp.array([4.0, 3.0])
    value, gradients = jax.value_and_grad(logit, argnums=(0, 1))(q, k)
    np.testing.assert_allclose(value, 7.68, rtol=1e-6)
    np.testing.assert_allclose(gradients[0], dq, rtol=1e-5)
    np.testing.assert_allclose(gradients[1], [-0.2688, 0.3584], rtol=1e-5)


def test_logits_of_two_queries_and_two_keys():
    norm = make(2, eps_mode="clamp")
    q, k = jnp.array([[3.0, 4.0], [1.0, 0.0]]), jnp.array([[4.0, 3.0], [0.0, 2.0]])
    expected = [[7.68, 6.4], [6.4, 0]]
    np.testing.assert_allclose(8 * norm(q) @ norm(k).T, expected, rtol=1e-6)


@pytest.mark.parametrize(
    "eps_mode, expected", [("inside", 0.5**0.5), ("clamp", 1.0), ("outside", 0.5)]
)
def test_length_of_a_token_as_long_as_eps(eps_mode, expected):
    eps = 0.3**2 if eps_mode == "inside" else 0.3
    y = make(3, eps=eps, eps_mode=eps_mode)(jnp.array([0.2, -0.2, 0.1]))
    np.testing.assert_allclose(jnp.linalg.norm(y), expected, rtol=1e-6)


@pytest.mark.parametrize(
    "keywords", [{"eps": 0.0}, {"eps": 1e-13, "eps_mode": "clamp"}, {"eps_mode": "in"}]
)
def test_eps_that_cannot_protect_the_root_is_refused(keywords):
    with pytest.raises(ValueError, match="eps"):
        make(4, **keywords)
