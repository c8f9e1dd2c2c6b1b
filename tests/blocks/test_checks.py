"""Messages of the checks that parts share."""

import math

import pytest

from blocks.checks import (
    check_choice,
    check_finite,
    check_not_negative,
    check_positive,
    check_sizes,
)


@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
def test_positive_numbers(value):
    check_positive(scale=1e-300, factor=2)
    with pytest.raises(
        ValueError, match=f"^factor must be positive and finite, got {value}$"
    ):
        check_positive(scale=1.0, factor=value)


@pytest.mark.parametrize("value", [-1e-9, math.inf, math.nan])
def test_numbers_that_are_not_negative(value):
    check_not_negative(coefficient=0.0)
    with pytest.raises(
        ValueError, match=f"coefficient must be finite and at least 0, got {value}"
    ):
        check_not_negative(coefficient=value)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_finite_numbers(value):
    check_finite(shift=-3.0)
    with pytest.raises(ValueError, match=f"shift must be finite, got {value}"):
        check_finite(shift=value)


def test_sizes():
    check_sizes(width=1, depth=None)
    with pytest.raises(ValueError, match="depth must be at least 1, got 0"):
        check_sizes(width=3, depth=0)


def test_choices():
    check_choice("pool", None, (None, "mean"))
    with pytest.raises(
        ValueError, match="^pool must be one of null, mean, got 'meen'$"
    ):
        check_choice("pool", "meen", (None, "mean"))
