"""What the schedules share: the ramp from zero, and refusals."""

import math

import jax
import jax.numpy as jnp


def after_warmup(count, warmup_steps, value) -> jax.Array:
    """count / warmup_steps below `warmup_steps`, else `value`; all of one dtype."""
    # The unused side of `where` is computed too: no side may divide by zero.
    return jnp.where(count < warmup_steps, count / jnp.maximum(warmup_steps, 1), value)


def check_warmup_steps(warmup_steps) -> None:
    """Refuses what is not a finite number >= 0."""
    if not (math.isfinite(warmup_steps) and warmup_steps >= 0):
        raise ValueError(
            f"warmup_steps: expected a finite number >= 0, got {warmup_steps}"
        )


def check_fraction(**numbers) -> None:
    """Refuses what is not in [0, 1], by name."""
    for key, value in numbers.items():
        if not 0 <= value <= 1:
            raise ValueError(f"{key}: expected a number in [0, 1], got {value}")
