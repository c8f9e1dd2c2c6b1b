"""Warmup, then a decay that never ends."""

import jax
import jax.numpy as jnp

from experiments.schedules.warmup import after_warmup, check_warmup_steps


class InverseSqrt:
    """Linear warmup from zero, then the inverse square root of the count.

        min(count / w, sqrt(w / count)),    w = `warmup_steps`

    The length of the run plays no part. w = 0 is taken as a peak at the first update:
    1, then 1 / sqrt(count).

    Args:
        warmup_steps: w, updates. The peak rate is `learning_rate`; the schedule of
            arXiv 1706.03762, d^-0.5 min(t^-0.5, t w^-1.5), has it at (d w)^-0.5 with
            w = 4000.

    Source: arXiv 1706.03762 section 5.3; arXiv 2002.04745 trains Post-LN with it;
    facebookresearch/fairseq inverse_square_root_schedule.py, whose warmup also starts
    at zero.
    """

    traced = ("warmup_steps",)

    @staticmethod
    def check(*, warmup_steps: int = 4000) -> None:
        """Refuses a negative or non-finite warmup."""
        check_warmup_steps(warmup_steps)

    def __init__(self, *, warmup_steps: int = 4000):
        self.warmup_steps = warmup_steps

    def __call__(self, count, steps, dtype=jnp.float32) -> jax.Array:
        """A scalar in [0, 1]; see `WarmupCosine.__call__`."""
        del steps
        count, warmup = (jnp.asarray(x, dtype) for x in (count, self.warmup_steps))
        decay = jnp.sqrt(jnp.maximum(warmup, 1) / jnp.maximum(count, 1))
        return after_warmup(count, warmup, decay)
