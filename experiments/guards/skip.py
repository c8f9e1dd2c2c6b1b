"""Leaves out steps with a gradient that is not finite, or far too large."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from experiments.guards import running


class Skip:
    """A step is taken only if its loss and gradient norm are finite and |g| <= factor m.

    m is the mean of |g| (before clipping) over the steps taken, with weights that fall by
    `decay` a step. Of a step that is not taken nothing stays, as if it had been one of
    rate zero that no moment saw: parameters, the optimizer's state, an average and other
    state of the model are those from before. Its batch is gone, and it counts: a run has
    `steps` steps, and the schedule stands where it stood. Rows of metrics.jsonl get
    `skipped`, how many so far.

    Args:
        factor: None leaves out what is not finite only.
        decay: of the running norm.
        most: steps that may be left out in a row; with one more the run has diverged.
    """

    traced = ()
    told = ("skipped", "in_a_row")  # what a step says
    columns = ("skipped",)  # of which rows get these

    @staticmethod
    def check(
        *, factor: float | None = None, decay: float = 0.98, most: int = 20
    ) -> None:
        running.check(factor=factor, decay=decay)
        if most < 1:
            raise ValueError(f"most must be at least 1, got {most}")

    def __init__(
        self, *, factor: float | None = None, decay: float = 0.98, most: int = 20
    ):
        self.factor, self.decay, self.most = factor, decay, most

    def init(self, dtype) -> dict[str, jax.Array]:
        """What it carries from step to step."""
        nothing = {"skipped": jnp.int32(0), "in_a_row": jnp.int32(0)}
        return {**running.start(dtype), **nothing}

    def count(self, state) -> jax.Array:
        """Steps taken: where the schedule stands."""
        return state.step - state.guard["skipped"]

    def after(self, before, after, row: dict) -> tuple:
        """The state to go on with, and what is told, from those around a step."""
        guard, norm = before.guard, row["grad_norm"]
        is_fine = jnp.isfinite(row["loss"]) & jnp.isfinite(norm)
        is_fine &= ~running.stands_out(guard, norm, self.factor)
        told = {
            "skipped": guard["skipped"] + ~is_fine,
            "in_a_row": jnp.where(is_fine, 0, guard["in_a_row"] + 1),
        }
        kept = jax.tree.map(
            lambda new, old: jnp.where(is_fine, new, old), after, before
        )
        guard = {**running.went_on(guard, norm, is_fine, self.decay), **told}
        return dataclasses.replace(kept, step=after.step, guard=guard), told

    def judged(self, is_fine: np.ndarray, told: dict[str, np.ndarray]) -> np.ndarray:
        """Which steps a run goes on after, of those that looked fine or not."""
        in_a_row = told["in_a_row"]
        return np.where(in_a_row > 0, in_a_row <= self.most, is_fine)
