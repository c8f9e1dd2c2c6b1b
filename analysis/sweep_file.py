"""Reads `sweep.json`: the runs that a launcher set out to do."""

import json
from dataclasses import dataclass
from pathlib import Path

from analysis.errors import AnalysisError

FILE = "sweep.json"
SCHEMA = 1


@dataclass(frozen=True)
class PlannedRun:
    """One entry: a run's folder name, the hash that finds it again, and its steps."""

    run_id: str
    identity: str
    steps: int | None


def planned_runs(directory: Path) -> list[PlannedRun] | None:
    """The entries of `directory/sweep.json`; None where there is no such file.

    Raises:
        AnalysisError: the file is there and cannot be understood.
    """
    path = directory / FILE
    try:
        node = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise AnalysisError(f"{path}: not JSON ({error})") from None
    schema = node.get("schema") if isinstance(node, dict) else None
    if schema != SCHEMA:
        raise AnalysisError(f"{path}: expected schema {SCHEMA}, got {schema!r}")
    runs = node.get("runs")
    if not isinstance(runs, list):
        raise AnalysisError(f"{path}: expected a list `runs`, got {runs!r:.80}")
    return [_planned(path, i, run) for i, run in enumerate(runs)]


def identity_of(run_id: str) -> str:
    """The hash at the end of a folder's name; the slug before it is for eyes."""
    return run_id.rsplit("-", 1)[-1]


def _planned(path: Path, i: int, run) -> PlannedRun:
    for key in ("run_id", "identity"):
        value = run.get(key) if isinstance(run, dict) else None
        if not isinstance(value, str):
            raise AnalysisError(
                f"{path}: runs[{i}].{key}: expected text, got {value!r:.80}"
            )
    steps = run.get("steps")
    return PlannedRun(
        run["run_id"], run["identity"], steps if type(steps) is int else None
    )
