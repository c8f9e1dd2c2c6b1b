"""TensorBoard: event files in the folder `tensorboard` of each run."""

import json
import pathlib
from typing import Any

from experiments.loggers.finite import finite_numbers

FLUSH_SECONDS = 2


class TensorBoard:
    """Writes rows as scalars. `tensorboard --logdir outputs/<name>` shows all runs.

    A run has one folder however often it was resumed: every attempt adds a file that
    tells TensorBoard to forget the steps which are taken again. Rows reach the disk
    within seconds, by a thread of the writer: a killed process may lose the last ones.
    """

    package = "tensorboardX"

    def open(
        self,
        run_path: pathlib.Path,
        run_id: str,
        config: dict[str, Any],
        attempt: int,
        resume_step: int,
    ) -> None:
        """Starts an event file of this attempt.

        resume_step: of the checkpoint it goes on from; 0: from the start, and row 0 is
            written again too.
        """
        del run_id  # the folder is the run's own
        from tensorboardX import SummaryWriter

        self._writer = SummaryWriter(
            str(run_path / "tensorboard"),
            flush_secs=FLUSH_SECONDS,
            purge_step=resume_step + 1 if resume_step else 0,
            # Names go by the second: another attempt within it would overwrite the file.
            filename_suffix=f".{attempt:04}",
        )
        text = json.dumps(config, indent=1)
        # Indented by four: Markdown leaves it alone.
        block = "".join(f"    {line}\n" for line in text.splitlines())
        self._writer.add_text("config", block, resume_step)

    def rows(self, rows: list[dict[str, Any]]) -> None:
        for row in rows:
            for key, value in finite_numbers(row).items():
                self._writer.add_scalar(key, value, row["step"])

    def close(self, state: str) -> None:
        self._writer.add_text("state", state)
        self._writer.close()
