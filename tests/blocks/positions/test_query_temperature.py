"""Queries that grow with the position."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

from blocks.oracle import positions as oracle
from blocks.positions.query_temperature import QueryTemperature


def test_factor_is_a_staircase_of_the_logarithm():
    # attn_scale 0.5 and floor_scale 4: tokens 0-2 one, 3-6 ln 2, 7-10 ln 3.
    q, k = jnp.ones((1, 2, 9, 3)), jnp.ones((1, 1, 9, 3))
    y, same = QueryTemperature(3, strength=0.5, period=4)(q, k)
    steps = [0, 0, 0, 1, 1, 1, 1, 2, 2]
    expected = [1 + 0.5 * math.log(1 + step) for step in steps]
    np.testing.assert_allclose(y[0, 1, :, 2], expected, rtol=1e-6)
    assert same is k


def test_equals_the_oracle(float64):
    x = np.random.default_rng(0).normal(size=(1, 1, 9, 4))
    y, _ = QueryTemperature(4, strength=0.3, period=2)(jnp.asarray(x), jnp.asarray(x))
    expected = oracle.query_temperature(x[0, 0], strength=0.3, period=2)
    np.testing.assert_allclose(y[0, 0], expected, rtol=1e-13)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_keeps_the_dtype(dtype):
    q = jnp.ones((1, 1, 5, 2), dtype)
    y, _ = QueryTemperature(2, strength=1.0, period=1)(q, q)
    assert y.dtype == dtype
    expected = 1 + np.log1p(np.arange(5) + 1)
    np.testing.assert_allclose(y[0, 0, :, 0].astype(jnp.float32), expected, rtol=4e-3)


def test_senseless_values_are_refused():
    with pytest.raises(ValueError, match="period must be at least 1, got 0"):
        QueryTemperature(4, period=0)
    with pytest.raises(ValueError, match="strength must be finite, got nan"):
        QueryTemperature.check(strength=float("nan"))
    with pytest.raises(ValueError, match="expected last axis 4"):
        QueryTemperature(4)(jnp.ones((1, 1, 2, 3)), jnp.ones((1, 1, 2, 3)))
