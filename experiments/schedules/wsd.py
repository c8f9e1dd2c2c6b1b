"""Warmup, stable, decay."""

import math

import jax
import jax.numpy as jnp

from experiments.schedules.warmup import (
    after_warmup,
    check_fraction,
    check_warmup_steps,
)


class WSD:
    """Linear warmup from zero, the peak, and a decay over the last part of the run.

        count < w:    count / w
        w to T - D:   1
        otherwise:    1 - (1 - f) * s^power,    s = (count - (T - D)) / D, at most 1

    with w = `warmup_steps`, D = `decay_fraction` * T, f = `final_fraction`, T = `steps`.
    power 1 is a straight line, 0.5 the form "1-sqrt". With w = 0 and power 1 this is the
    schedule "stable, then linear": (1 - count / T) / `decay_fraction` in the end.

    A warmup that reaches into the decay shortens it: it then starts at w, from the
    peak. w >= T is all warmup. A decay shorter than one update is none.

    Args:
        warmup_steps: w, updates.
        decay_fraction: D / T, share of the run that decays.
        final_fraction: f, share of the peak that is left at T.
        power: shape of the decay.

    Source: arXiv 2404.06395 (MiniCPM); 1-sqrt: arXiv 2405.18392 and
    epfml/llm-optimizer-benchmark, whose default is to decay over 0.1;
    KellerJordan/modded-nanogpt track 3 has no warmup and decays over 0.7.
    """

    traced = ("warmup_steps", "decay_fraction", "final_fraction", "power")

    @staticmethod
    def check(
        *,
        warmup_steps: int = 100,
        decay_fraction: float = 0.2,
        final_fraction: float = 0.0,
        power: float = 1.0,
    ) -> None:
        """Refuses a bad warmup, fractions outside [0, 1] and a power that is not > 0."""
        check_warmup_steps(warmup_steps)
        check_fraction(decay_fraction=decay_fraction, final_fraction=final_fraction)
        if not (math.isfinite(power) and power > 0):
            raise ValueError(f"power: expected a finite number > 0, got {power}")

    def __init__(
        self,
        *,
        warmup_steps: int = 100,
        decay_fraction: float = 0.2,
        final_fraction: float = 0.0,
        power: float = 1.0,
    ):
        self.warmup_steps = warmup_steps
        self.decay_fraction = decay_fraction
        self.final_fraction = final_fraction
        self.power = power

    def __call__(self, count, steps, dtype=jnp.float32) -> jax.Array:
        """A scalar in [0, 1]; see `WarmupCosine.__call__`."""
        count, steps, warmup, fraction, final, power = (
            jnp.asarray(x, dtype)
            for x in (
                count,
                steps,
                self.warmup_steps,
                self.decay_fraction,
                self.final_fraction,
                self.power,
            )
        )
        start = jnp.maximum(steps - fraction * steps, warmup)
        progress = jnp.clip((count - start) / jnp.maximum(steps - start, 1), 0, 1)
        return after_warmup(count, warmup, 1 - (1 - final) * progress**power)
