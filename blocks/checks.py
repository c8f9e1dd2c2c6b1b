"""What parts check of the values that they are made with."""

import math
from collections.abc import Sequence


def check_positive(**numbers: float) -> None:
    """Raises ValueError: names the first number that is not positive and finite."""
    for name, value in numbers.items():
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{name} must be positive and finite, got {value}")


def check_not_negative(**numbers: float) -> None:
    """Raises ValueError: names the first number that is not finite, or below 0."""
    for name, value in numbers.items():
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"{name} must be finite and at least 0, got {value}")


def check_finite(**numbers: float) -> None:
    """Raises ValueError: names the first number that is not finite."""
    for name, value in numbers.items():
        if not math.isfinite(value):
            raise ValueError(f"{name} must be finite, got {value}")


def check_sizes(**sizes: int | None) -> None:
    """Raises ValueError: names the one below 1; None is no size."""
    for name, size in sizes.items():
        if size is not None and size < 1:
            raise ValueError(f"{name} must be at least 1, got {size}")


def check_choice(name: str, value, choices: Sequence) -> None:
    """Raises ValueError: `value` is none of `choices`; None is null in a config."""
    if value not in choices:
        known = ", ".join("null" if c is None else str(c) for c in choices)
        raise ValueError(f"{name} must be one of {known}, got {value!r}")
