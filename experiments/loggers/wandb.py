"""Weights & Biases: files of each run to be synced later, or a server at once."""

import os
import pathlib
from typing import Any

from experiments.loggers.finite import finite_numbers

MODES = ("offline", "online")


class WandB:
    """Logs rows to a W&B run whose id is that of our run.

    offline: `wandb sync outputs/<name>/*/wandb/offline-run-*` uploads what is there.
    W&B takes no step twice: of steps that are taken again after a crash, the values of
    the first time stay.

    mode: offline | online.
    project: null is the name of the runs.
    entity: user or team; null is the default of whoever is logged in.
    """

    package = "wandb"

    @staticmethod
    def check(*, mode: str = "offline") -> None:
        if mode not in MODES:
            raise ValueError(f"mode: must be offline or online, got {mode!r}")

    def __init__(
        self,
        *,
        mode: str = "offline",
        project: str | None = None,
        entity: str | None = None,
    ):
        self.mode = mode
        self.project = project
        self.entity = entity

    def open(
        self,
        run_path: pathlib.Path,
        run_id: str,
        config: dict[str, Any],
        attempt: int,
        resume_step: int,
    ) -> None:
        """Starts the run, or goes on with the one of this id."""
        del resume_step  # see above
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # offline is offline
        import wandb

        self._run = wandb.init(
            dir=str(run_path),
            id=run_id,
            name=run_path.name,
            # A slash would be part of an address.
            project=self.project or config["name"].replace("/", "-"),
            entity=self.entity,
            config={**config, "attempt": attempt},
            mode=self.mode,
            resume="allow",
            reinit="create_new",  # many runs at a time in one process
            settings=wandb.Settings(
                silent=True,
                console="off",  # the display is ours
                disable_git=True,
                save_code=False,
                init_timeout=60,
                login_timeout=30,
            ),
        )

    def rows(self, rows: list[dict[str, Any]]) -> None:
        for row in rows:
            self._run.log(finite_numbers(row), step=row["step"])

    def close(self, state: str) -> None:
        self._run.summary["state"] = state
        self._run.finish(exit_code=1 if state == "failed" else 0)
