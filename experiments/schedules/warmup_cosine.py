"""Warmup, then a cosine."""

import jax
import jax.numpy as jnp

from experiments.schedules.warmup import (
    after_warmup,
    check_fraction,
    check_warmup_steps,
)


class WarmupCosine:
    """Linear warmup from zero, then a cosine to a fraction of the peak.

        count < w:  count / w
        otherwise:  f + (1 - f) * (1 + cos(pi * s)) / 2,  s = (count - w) / (T - w)

    with w = `warmup_steps`, f = `final_fraction`, T = `steps` (warmup included, so the
    decay ends at T) and s clipped to [0, 1]. `count` is the number of finished updates:
    update t = 1, 2, ... uses multiplier(t - 1). The warmup therefore starts at exactly
    zero and with w > 0 the first update moves nothing, as in the usual definition;
    w = 0 has no warmup and starts at the peak. With w >= T a run of T steps is all
    warmup.

    Args:
        warmup_steps: w, updates.
        final_fraction: f, share of the peak that is left at T.

    Source: optax 0.2.8 `warmup_cosine_decay_schedule(0, 1, w, T, f)`, which however
    needs w and T as plain Python numbers; here both may be traced.
    """

    traced = ("warmup_steps", "final_fraction")

    @staticmethod
    def check(*, warmup_steps: int = 100, final_fraction: float = 0.1) -> None:
        """Refuses a negative or non-finite warmup and a fraction outside [0, 1]."""
        check_warmup_steps(warmup_steps)
        check_fraction(final_fraction=final_fraction)

    def __init__(self, *, warmup_steps: int = 100, final_fraction: float = 0.1):
        self.warmup_steps = warmup_steps
        self.final_fraction = final_fraction

    def __call__(self, count, steps, dtype=jnp.float32) -> jax.Array:
        """The multiplier of the update after `count` finished ones.

        Args:
            count: finished updates, from 0; a number or a traced integer.
            steps: updates of the whole run, T; likewise.
            dtype: of the arithmetic and of the result. float32 counts exactly up to
                2^24 updates.

        Returns:
            A scalar in [0, 1].
        """
        count, steps, warmup, final = (
            jnp.asarray(x, dtype)
            for x in (count, steps, self.warmup_steps, self.final_fraction)
        )
        progress = jnp.clip((count - warmup) / jnp.maximum(steps - warmup, 1), 0, 1)
        cosine = final + (1 - final) * (1 + jnp.cos(jnp.pi * progress)) / 2
        return after_warmup(count, warmup, cosine)
