"""What only GroupNorm promises."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from blocks.norms.groupnorm import GroupNorm
from blocks.norms.layernorm import LayerNorm

make = functools.partial(GroupNorm, rngs=nnx.Rngs(0))


def test_vectors(check_vectors, norm_vectors):
    # But for row D the gradient in x is what a cancellation leaves: below.
    vectors = {
        row: {k: v for k, v in expected.items() if k != "dx" or row == "D"}
        for row, expected in norm_vectors["vectors"]["groupnorm"].items()
    }
    check_vectors(make(4, n_groups=2), vectors)


@pytest.mark.parametrize("row", "ABC")
@pytest.mark.parametrize("dtype, atol", [("float64", 1e-14), ("float32", 1e-5)])
def test_gradient_of_groups_of_two_nearly_vanishes(norm_vectors, dtype, atol, row):
    data = norm_vectors["data"]
    with jax.enable_x64(dtype == "float64"):
        norm = make(4, n_groups=2)
        norm.gain.set_value(jnp.asarray(data["gain"], dtype))
        _, pull = jax.vjp(norm, jnp.asarray(data["rows"][row], dtype))
        (dx,) = pull(jnp.asarray(data["upstream"], dtype))
    wanted = norm_vectors["vectors"]["groupnorm"][row]["dx"]
    rtol = 1e-8 if dtype == "float64" else 0
    np.testing.assert_allclose(dx, wanted, rtol=rtol, atol=atol)


def test_one_group_is_layernorm():
    x = jax.random.normal(jax.random.key(0), (3, 8))
    whole = LayerNorm(8, eps=1e-6, rngs=nnx.Rngs(0))
    np.testing.assert_allclose(make(8, n_groups=1)(x), whole(x), rtol=1e-6, atol=1e-7)


def test_groups_are_neighbouring_features_and_do_not_meet():
    x = jax.random.normal(jax.random.key(0), (12,))
    meets = jax.jacobian(make(12, n_groups=3))(x) != 0
    np.testing.assert_array_equal(meets, np.kron(np.eye(3), np.ones((4, 4))) == 1)


def test_time_is_not_pooled():
    x = jax.random.normal(jax.random.key(0), (2, 5, 8))
    norm = make(8)
    later = x.at[:, 3:].multiply(100.0)
    np.testing.assert_array_equal(norm(x)[:, :3], norm(later)[:, :3])


@pytest.mark.parametrize("n_groups", [3, 16])
def test_groups_of_unequal_width_are_refused(n_groups):
    with pytest.raises(
        ValueError, match=f"n_groups must divide d_model=8, got {n_groups}"
    ):
        make(8, n_groups=n_groups)


def test_no_groups_are_refused():
    with pytest.raises(ValueError, match="n_groups must be at least 1, got 0"):
        GroupNorm.check(n_groups=0)


def test_bias_can_be_left_out():
    assert set(nnx.state(make(8, bias=False))) == {"gain"}
