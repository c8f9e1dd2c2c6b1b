"""MLflow: a local folder of all runs of one name, or a server."""

import os
import pathlib
import threading
import time
from typing import Any

from experiments.loggers.finite import finite_numbers

# Of MLflow: what one call takes.
MAX_METRICS, MAX_PARAMS, MAX_TEXT = 1000, 100, 500

# Runs open in threads, and an experiment is made by the first of them.
_making = threading.Lock()


class MLflow:
    """Logs rows to an MLflow run that carries the id of our run as a tag.

    uri: of a tracking server; null is the folder `mlruns` beside the runs. MLflow 3
        shows such a folder after MLFLOW_ALLOW_FILE_STORE=true.

    MLflow keeps every value it ever got, so rows up to the last step it has are not
    sent again: of steps that are taken again, the values of the first time stay.
    """

    package = "mlflow"

    def __init__(self, *, uri: str | None = None):
        self.uri = uri

    def open(
        self,
        run_path: pathlib.Path,
        run_id: str,
        config: dict[str, Any],
        attempt: int,
        resume_step: int,
    ) -> None:
        """Starts the run, or goes on with the one of this id."""
        del resume_step  # what MLflow has is asked of MLflow
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        from mlflow.tracking import MlflowClient

        folder = (run_path.parent / "mlruns").resolve()
        self._client = MlflowClient(self.uri or folder.as_uri())
        experiment = self._experiment(config["name"])
        found = self._client.search_runs([experiment], f"tags.run_id = '{run_id}'")
        if found:
            self._run = found[0].info.run_id
            self._client.update_run(self._run, status="RUNNING")
            self._last = self._last_step(found[0].data.metrics)
        else:
            tags = {"run_id": run_id}
            made = self._client.create_run(
                experiment, tags=tags, run_name=run_path.name
            )
            self._run, self._last = made.info.run_id, -1
            self._describe(config)
        self._client.set_tag(self._run, "attempt", attempt)

    def rows(self, rows: list[dict[str, Any]]) -> None:
        from mlflow.entities import Metric

        now = round(time.time() * 1000)
        metrics = [
            Metric(key, value, now, row["step"])
            for row in rows
            if row["step"] > self._last
            for key, value in finite_numbers(row).items()
        ]
        for i in range(0, len(metrics), MAX_METRICS):
            self._client.log_batch(self._run, metrics=metrics[i : i + MAX_METRICS])

    def close(self, state: str) -> None:
        self._client.set_tag(self._run, "state", state)
        ended = {"failed": "FAILED", "preempted": "KILLED"}.get(state, "FINISHED")
        self._client.set_terminated(self._run, ended)

    def _experiment(self, name: str) -> str:
        with _making:
            found = self._client.get_experiment_by_name(name)
            return (
                found.experiment_id if found else self._client.create_experiment(name)
            )

    def _last_step(self, metrics: dict[str, float]) -> int:
        return max(
            (
                metric.step
                for key in metrics
                for metric in self._client.get_metric_history(self._run, key)
            ),
            default=-1,
        )

    def _describe(self, config: dict[str, Any]) -> None:
        """The config as parameters: once, they cannot be changed."""
        from mlflow.entities import Param

        params = [
            Param(key, str(value)[:MAX_TEXT])
            for key, value in _leaves(config)
            if not key.startswith("tags.")  # whole tables of expectations
        ]
        for i in range(0, len(params), MAX_PARAMS):
            self._client.log_batch(self._run, params=params[i : i + MAX_PARAMS])


def _leaves(node: dict[str, Any], prefix: str = ""):
    """Dotted key and value of everything in nested mappings."""
    for key, value in node.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
