"""Warmup, then a straight line."""

import jax
import jax.numpy as jnp

from experiments.schedules.warmup import (
    after_warmup,
    check_fraction,
    check_warmup_steps,
)


class WarmupLinear:
    """Linear warmup from zero, then a line to a fraction of the peak at the last step.

        count < w:  count / w
        otherwise:  1 - (1 - f) * s,    s = (count - w) / (T - w), clipped to [0, 1]

    with w = `warmup_steps`, f = `final_fraction`, T = `steps`, warmup included. Edge
    cases as in `WarmupCosine`: w = 0 starts at the peak, w >= T is all warmup.

    Args:
        warmup_steps: w, updates.
        final_fraction: f, share of the peak that is left at T.

    Source: optax 0.2.8 `join_schedules([linear_schedule(0, 1, w),
    linear_schedule(1, f, T - w)], [w])`, except for w = 0, where optax stays at 0.
    """

    traced = ("warmup_steps", "final_fraction")

    @staticmethod
    def check(*, warmup_steps: int = 100, final_fraction: float = 0.0) -> None:
        """Refuses a negative or non-finite warmup and a fraction outside [0, 1]."""
        check_warmup_steps(warmup_steps)
        check_fraction(final_fraction=final_fraction)

    def __init__(self, *, warmup_steps: int = 100, final_fraction: float = 0.0):
        self.warmup_steps = warmup_steps
        self.final_fraction = final_fraction

    def __call__(self, count, steps, dtype=jnp.float32) -> jax.Array:
        """A scalar in [0, 1]; see `WarmupCosine.__call__`."""
        count, steps, warmup, final = (
            jnp.asarray(x, dtype)
            for x in (count, steps, self.warmup_steps, self.final_fraction)
        )
        progress = jnp.clip((count - warmup) / jnp.maximum(steps - warmup, 1), 0, 1)
        return after_warmup(count, warmup, 1 - (1 - final) * progress)
