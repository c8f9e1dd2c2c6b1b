"""Ends a run at a gradient far above those before it."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from experiments.guards import running


class Stop:
    """A run has diverged at the first step with |g| > factor m; it costs nothing more.

    m as in `Skip`. A loss or gradient that is not finite ends a run without this too, as
    does a loss above `task.diverged_above`.

    Args:
        factor, decay: of the rule.
    """

    traced = ()
    told = ("stands_out",)
    columns = ()

    @staticmethod
    def check(*, factor: float = 10.0, decay: float = 0.98) -> None:
        running.check(factor=factor, decay=decay)

    def __init__(self, *, factor: float = 10.0, decay: float = 0.98):
        self.factor, self.decay = factor, decay

    def init(self, dtype) -> dict[str, jax.Array]:
        """What it carries from step to step."""
        return running.start(dtype)

    def count(self, state) -> jax.Array:
        """Steps taken: all."""
        return state.step

    def after(self, before, after, row: dict) -> tuple:
        """The state to go on with, and what is told, from those around a step."""
        norm = row["grad_norm"]
        stands_out = running.stands_out(before.guard, norm, self.factor)
        guard = running.went_on(before.guard, norm, jnp.bool_(True), self.decay)
        told = {"stands_out": stands_out}
        return dataclasses.replace(after, guard=guard), told

    def judged(self, is_fine: np.ndarray, told: dict[str, np.ndarray]) -> np.ndarray:
        """Which steps a run goes on after, of those that looked fine or not."""
        return is_fine & (told["stands_out"] == 0)
