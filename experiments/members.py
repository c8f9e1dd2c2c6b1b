"""A member: one run while it is being worked on."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from experiments.config import Config
from experiments.loggers.guarded import Loggers
from experiments.run import RunDirectory, last_value


@dataclasses.dataclass
class Member:
    """A run of a group: its config, its directory, and where it stands.

    `state` is planned, running, or one of the states of status.json; `step`, `loss` and
    `tokens_per_second` are the latest known, for whoever watches.
    """

    config: Config
    directory: RunDirectory
    state: str = "planned"
    step: int = 0
    loss: float | None = None
    val_loss: float | None = None
    val_accuracy: float | None = None  # of a model that classifies
    tokens_per_second: float | None = None
    item: str = "token"  # what is counted there
    error: str | None = None
    diverged_step: int | None = None
    note: str | None = None
    seconds: float = 0.0  # spent in training steps, earlier attempts included
    restores: int = 0  # how often it went back from where it diverged
    pending: list = dataclasses.field(default_factory=list)  # rows not yet written

    loggers: Loggers = dataclasses.field(default_factory=Loggers)

    def open_loggers(self, resume_step: int) -> None:
        """Once the rows of steps that are taken again have been dropped."""
        if not self.loggers:
            return
        directory = self.directory
        self.loggers.open(
            directory.path,
            directory.identity,
            self.config.to_config(),
            directory.status().attempt + self.restores,  # each opens a file of its own
            resume_step,
        )

    def write(self, rows: list[dict]) -> None:
        """Rows to metrics.jsonl, and then to the loggers."""
        self.directory.append("metrics.jsonl", rows)
        self.loggers.rows(rows)

    def recall_evaluation(self, rows: list[dict]) -> None:
        """Takes up what was measured last, from the rows of an earlier attempt."""
        self.val_loss = last_value(rows, "val_loss")
        self.val_accuracy = last_value(rows, "val_accuracy")

    def forget_evaluation(self) -> None:
        """What a run measured before it diverged is no result."""
        self.val_loss = self.val_accuracy = None

    @property
    def objective(self) -> float:
        """What a search over configs minimizes: the last validation loss, or the loss."""
        value = self.loss if self.val_loss is None else self.val_loss
        return float("nan") if value is None or self.state == "diverged" else value

    @property
    def is_done(self) -> bool:
        """Whether the run has a result; a diverged run is one."""
        return self.state in ("completed", "diverged")


def stack_inputs(members: list[Member], dtype) -> tuple[jax.Array, dict, jax.Array]:
    """Seeds [M], traced values {path: [M]} and step counts [M] of some members.

    Everything is strongly typed: a weakly typed input would compile the program again.
    """
    numbers = [m.config.traced_values() for m in members]
    seeds = np.array([m.config.seed for m in members], np.uint32)
    steps = np.array([m.config.steps for m in members], np.int32)
    values = {
        path: np.array(
            [own[path] for own in numbers],
            np.int32 if isinstance(value, int) else dtype,
        )
        for path, value in numbers[0].items()
    }
    # Not jnp.asarray: each shape would be a program of its own.
    with jax.enable_x64(dtype == jnp.float64):
        return jax.device_put((seeds, values, steps))
