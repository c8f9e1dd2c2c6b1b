"""What only UnitNorm promises."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from blocks.norms.unitnorm import UnitNorm

make = functools.partial(UnitNorm, rngs=nnx.Rngs(0))


@pytest.mark.parametrize("scale", [1e-37, 1e-30, 1e-20, 1e-3, 1.0, 1e4, 1e30, 1e37])
def test_length_is_one_at_every_scale(scale):
    x = scale * jnp.array([[3.0, 4.0, 0.0], [-1.0, 2.0, -2.0]])
    expected = [[0.6, 0.8, 0], [-1 / 3, 2 / 3, -2 / 3]]
    np.testing.assert_allclose(make(3)(x), expected, rtol=2e-6)


def test_zero_stays_zero_and_has_no_gradient():
    y, pull = jax.vjp(make(3), jnp.zeros((2, 3)))
    np.testing.assert_array_equal(y, jnp.zeros((2, 3)))
    np.testing.assert_array_equal(pull(jnp.ones((2, 3)))[0], jnp.zeros((2, 3)))


@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e15])
def test_jacobian_is_the_projection_divided_by_the_length(scale):
    x = np.array([3.0, -4.0, 12.0])  # length 13
    expected = (np.eye(3) - np.outer(x, x) / 169) / 13
    jacobian = jax.jacobian(make(3))(scale * jnp.asarray(x, jnp.float32))
    np.testing.assert_allclose(scale * jacobian, expected, rtol=1e-5, atol=1e-7)


def test_ties_of_the_largest_entry_have_the_same_gradient():
    x = jnp.array([2.0, -2.0, 2.0])
    expected = (np.eye(3) - np.outer([1, -1, 1], [1, -1, 1]) / 3) / 12**0.5
    np.testing.assert_allclose(jax.jacobian(make(3))(x), expected, rtol=1e-5)


def test_gain_is_a_factor_per_feature():
    norm = make(2, gain=True)
    y = norm(jnp.array([3.0, 4.0]))
    np.testing.assert_allclose(y, [0.6, 0.8], rtol=1e-6)
    norm.gain.set_value(jnp.array([2.0, -1.0]))
    np.testing.assert_allclose(norm(jnp.array([3.0, 4.0])), [1.2, -0.8], rtol=1e-6)


def test_a_step_on_the_sphere(float64):
    # arXiv 2410.01131: h + 0.05 (unit(branch) - h), made a unit vector again.
    norm = make(2)
    h, branch = jnp.array([0.6, 0.8]), jnp.array([3.0, -4.0])
    moved = h + 0.05 * (norm(branch) - h)
    np.testing.assert_allclose(moved, [0.6, 0.72], rtol=1e-12)
    np.testing.assert_allclose(norm(moved), [0.640184400, 0.768221280], rtol=1e-9)
