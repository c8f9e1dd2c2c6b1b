"""The reciprocal root that the normalizers share."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from blocks.norms.statistics import (
    SMALLEST_EPS,
    check_eps,
    check_groups,
    reciprocal_root,
    widened,
)


@pytest.mark.parametrize(
    "mode, expected",
    # 1 / sqrt(0.25 + 0.11), 1 / (0.5 + 0.11), 1 / max(0.5, 0.11), 1 / max(0.5, 0.8)
    [
        (("inside", 0.11), 1 / 0.6),
        (("outside", 0.11), 1 / 0.61),
        (("clamp", 0.11), 2.0),
        (("clamp", 0.8), 1.25),
    ],
)
def test_where_eps_stands(mode, expected):
    name, eps = mode
    got = reciprocal_root(jnp.float32(0.25), eps, name)
    np.testing.assert_allclose(got, expected, rtol=1e-6)


@pytest.mark.parametrize("mode", SMALLEST_EPS)
@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e-20, 1e-19, 1e-10, 1.0])
def test_gradient_is_finite_at_the_smallest_eps(mode, scale):
    def f(x):
        square = jnp.sum(jnp.square(x), keepdims=True)
        return jnp.sum(x * reciprocal_root(square, SMALLEST_EPS[mode], mode))

    value, gradient = jax.value_and_grad(f)(scale * jnp.array([1.0, -2.0]))
    assert jnp.isfinite(value)
    assert jnp.isfinite(gradient).all()


@pytest.mark.parametrize("mode, limit", [("inside", 1e3), ("outside", 1e6)])
def test_gradient_at_zero_is_the_largest_multiplier(mode, limit):
    f = lambda x: (x * reciprocal_root(jnp.square(x), 1e-6, mode))[0]  # noqa: E731
    np.testing.assert_allclose(jax.grad(f)(jnp.zeros(1)), [limit], rtol=1e-6)


@pytest.mark.parametrize("mode", SMALLEST_EPS)
@pytest.mark.parametrize("factor", [0.0, -1.0, 0.9, np.inf, np.nan])
def test_eps_that_cannot_protect_the_root_is_refused(mode, factor):
    check_eps(SMALLEST_EPS[mode], mode)
    with pytest.raises(ValueError, match="eps must be"):
        check_eps(factor * SMALLEST_EPS[mode], mode)


def test_unknown_mode_is_refused():
    with pytest.raises(ValueError, match="eps_mode must be .* got 'nowhere'"):
        check_eps(1e-6, "nowhere")


@pytest.mark.parametrize("count", [0, -2, 5, 13])
def test_groups_of_unequal_width_are_refused(count):
    check_groups("n_groups", 4, 12)
    with pytest.raises(
        ValueError, match=f"n_groups must divide d_model=12, got {count}"
    ):
        check_groups("n_groups", count, 12)


@pytest.mark.parametrize("shape", [(), (3, 1), (4, 3)])
def test_wrong_width_is_refused(shape):
    with pytest.raises(ValueError, match="expected last axis 4"):
        widened(jnp.ones(shape), 4)
