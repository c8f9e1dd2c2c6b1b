"""What becomes of a run that diverged: back to a checkpoint, and on another way."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from experiments.members import Member

# Odd and without a pattern in its bits: seeds near a run's own are those of other runs.
STRIDE = 0x9E3779B9


class Restore:
    """Continues a run that diverged from its last checkpoint, with other batches.

    After the n-th time batches are those of seed + n * 0x9e3779b9 (mod 2^32), and all
    learning rates are rate^n of the config's. Without a checkpoint it begins anew, with
    the parameters of its seed. Validation batches stay. Rows of steps that are taken
    again are dropped; `restores` in status.json counts, and a run that was killed goes on
    in the same way.

    Args:
        times: so often; then the run has diverged for good.
        rate: factor on the learning rates, each time.
    """

    traced = ()

    @staticmethod
    def check(*, times: int = 3, rate: float = 1.0) -> None:
        if times < 1:
            raise ValueError(f"times must be at least 1, got {times}")
        if not 0 < rate <= 1:
            raise ValueError(f"rate must be in 0 .. 1 (without 0), got {rate}")

    def __init__(self, *, times: int = 3, rate: float = 1.0):
        self.times, self.rate = times, rate

    def may(self, member: Member) -> bool:
        """Whether a run that diverged has another way left."""
        return member.restores < self.times

    def prepare(self, member: Member) -> None:
        """Marks a run that diverged as one that goes on."""
        member.restores += 1
        member.loggers.close("running")
        member.note = (
            f"diverged at step {member.diverged_step}, restored "
            f"({member.restores} of {self.times})"
        )
        member.state, member.diverged_step = "running", None
        member.directory.update(restores=member.restores)

    def inputs(
        self, members: Sequence[Member], seeds: jax.Array, values: dict
    ) -> tuple[jax.Array, dict]:
        """Seeds of the batches [M] and traced values {path: [M]} of members."""
        n = np.array([member.restores for member in members])
        if not n.any():
            return seeds, values
        moved = (np.asarray(seeds, np.uint64) + n.astype(np.uint64) * STRIDE) % 2**32
        with jax.enable_x64(any(x.dtype == np.float64 for x in values.values())):
            values = {
                path: jnp.asarray(np.asarray(x) * (self.rate**n).astype(x.dtype))
                if path.rpartition(".")[2].endswith("learning_rate")
                else x
                for path, x in values.items()
            }
        return jnp.asarray(moved.astype(np.uint32)), values
