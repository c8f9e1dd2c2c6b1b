"""Where the runs of a folder stand, from status.json and the last metric rows alone.

Nothing is read whole that grows with a run, so a thousand runs take about a second.
"""

import collections
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from analysis.folders import require_folder, run_folders, runs_in
from analysis.locks import is_held
from analysis.sweep_file import PlannedRun, identity_of, planned_runs

# In the order in which a person wants to see them.
STATES = (
    "lost",
    "failed",
    "running",
    "preempted",
    "diverged",
    "planned",
    "completed",
)
DONE = ("completed", "diverged", "failed")  # nobody is going on with these
TAIL = 16 * 1024  # bytes of metrics.jsonl: 80 rows or so
AXES = ("step", "seconds")


@dataclass(frozen=True)
class RunStatus:
    """Where one run stands; None is what is not known.

    Attributes:
        run_id: name of its folder.
        state: that of status.json, except `planned` (in sweep.json, no folder yet) and
            `lost`: it says running, or nothing, and no process holds the lock.
        step, steps: finished updates, and how many there shall be.
        loss: of the last logged step [nats/token].
        val_loss, val_accuracy: the last ones; None where they are not in the last rows,
            or diverged.
        tokens_per_second: of the last logged step.
        steps_per_second: over the last rows, of a running run.
        seconds_left: at that speed, of a running run.
        attempt: how often it was started.
        error, warning: one line each.
    """

    run_id: str
    state: str
    step: int | None = None
    steps: int | None = None
    loss: float | None = None
    val_loss: float | None = None
    val_accuracy: float | None = None
    tokens_per_second: float | None = None
    steps_per_second: float | None = None
    seconds_left: float | None = None
    attempt: int | None = None
    error: str | None = None
    warning: str | None = None

    @property
    def steps_left(self) -> int:
        """0 where the number of steps is not known."""
        if self.state in DONE or self.steps is None:
            return 0
        return max(0, self.steps - (self.step or 0))


@dataclass(frozen=True)
class SweepStatus:
    """All runs of a folder, those first that want attention."""

    directory: Path
    runs: list[RunStatus]

    @property
    def counts(self) -> dict[str, int]:
        """State -> number of runs, in the order of `STATES`, then unheard-of ones."""
        found = collections.Counter(run.state for run in self.runs)
        others = sorted(set(found) - set(STATES))
        return {s: found[s] for s in (*STATES, *others) if s in found}

    @property
    def n_done(self) -> int:
        return sum(run.state in DONE for run in self.runs)

    @property
    def seconds_left(self) -> float | None:
        """All steps left over all steps a second; None while nothing is running.

        No run is done before its own time, however many there are beside it.
        """
        speed = sum(run.steps_per_second or 0 for run in self.runs)
        if not speed:
            return None
        shared = sum(run.steps_left for run in self.runs) / speed
        return max(shared, *(run.seconds_left or 0 for run in self.runs))


def read_sweep(directory: str | Path) -> SweepStatus:
    """Reads the runs of a folder `outputs/<name>`, and its `sweep.json` if there is one.

    Raises:
        AnalysisError: no folder of runs, or a sweep.json that cannot be understood.
    """
    directory = Path(directory)
    require_folder(directory)
    plan = planned_runs(directory)
    # With a plan no run needs to exist yet.
    folders = run_folders(directory) if plan is None else runs_in(directory)
    by_identity = {planned.identity: planned for planned in plan or ()}
    runs = [read_status(f, by_identity.pop(identity_of(f.name), None)) for f in folders]
    runs += [
        RunStatus(planned.run_id, "planned", step=0, steps=planned.steps)
        for planned in by_identity.values()
    ]
    rank = {state: i for i, state in enumerate(STATES)}
    runs.sort(key=lambda run: rank.get(run.state, -1))
    return SweepStatus(directory, runs)


def read_status(folder: Path, planned: PlannedRun | None = None) -> RunStatus:
    """Reads one run; `planned` is its entry in sweep.json."""
    node, problem = _status(folder)
    state = node.get("state")
    if problem or state == "running":
        is_live = is_held(folder)
        # It may have come to its end between the two looks; a run ends in its status
        # before it lets go of its lock.
        node, problem = _status(folder)
        state = node.get("state")
        if problem or state == "running":
            state = "running" if is_live else "lost"
    is_running = state == "running"
    step, steps = _whole(node.get("step")), _whole(node.get("steps"))
    if steps is None and planned is not None:
        steps = planned.steps
    lines = _tail(folder / "metrics.jsonl")
    last = next(_rows(reversed(lines), b'"loss"'), {})
    val = next(_rows(reversed(lines), b'"val_loss"'), {})
    val = {} if state == "diverged" else val  # what was before is no result
    if is_running:  # the status of a running run is up to a second behind its rows
        step = max(step or 0, _whole(last.get("step")) or 0)
    speed = _steps_per_second(lines) if is_running else None
    return RunStatus(
        run_id=folder.name,
        state=str(state),
        step=step,
        steps=steps,
        loss=_number(last.get("loss")),
        val_loss=_number(val.get("val_loss")),
        val_accuracy=_number(val.get("val_accuracy")),
        tokens_per_second=_number(last.get("tokens_per_second")),
        steps_per_second=speed,
        seconds_left=max(0, steps - step) / speed if speed and steps else None,
        attempt=_whole(node.get("attempt")),
        # Nothing is wrong with a run that has only just begun.
        error=_line(node.get("error")) or (None if is_running else problem),
        warning=_line(node.get("warning")),
    )


def _status(folder: Path) -> tuple[dict, str | None]:
    """The contents of status.json, and what is wrong with it if there are none."""
    try:
        node = json.loads((folder / "status.json").read_bytes())
    except FileNotFoundError:
        return {}, "status.json: missing"
    except (OSError, ValueError) as error:
        return {}, f"status.json: unreadable ({type(error).__name__})"
    if not isinstance(node, dict) or not isinstance(node.get("state"), str):
        return {}, "status.json: no state"
    return node, None


def _tail(path: Path) -> list[bytes]:
    """The last lines of a file; the first of them is dropped where it may be cut."""
    try:
        with path.open("rb", buffering=0) as file:
            start = max(0, os.fstat(file.fileno()).st_size - TAIL)
            file.seek(start)
            lines = file.read(TAIL).split(b"\n")
    except FileNotFoundError:
        return []
    return lines[1:] if start else lines


def _rows(lines, key: bytes) -> Iterator[dict]:
    """The rows that mention a key; a line that a crash cut is none."""
    for line in lines:
        if key in line:
            try:
                row = json.loads(line)
            except ValueError:
                continue
            if isinstance(row, dict):
                yield row


def _steps_per_second(lines: list[bytes]) -> float | None:
    """Over the rows of the tail that have a time."""
    first = next(_rows(lines, b'"seconds"'), {})
    last = next(_rows(reversed(lines), b'"seconds"'), {})
    numbers = [_number(row.get(key)) for row in (first, last) for key in AXES]
    if None in numbers:
        return None
    step, seconds, last_step, last_seconds = numbers
    if last_step == step:  # one row so far: the mean since the start
        step, seconds = 0, 0
    gained, took = last_step - step, last_seconds - seconds
    return gained / took if gained > 0 and took > 0 else None


def _number(value) -> float | None:
    """A finite number, else None: a hand-edited file must not stop the table."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number and abs(value) < float("inf") else None


def _whole(value) -> int | None:
    return value if type(value) is int else None


def _line(value) -> str | None:
    return " ".join(value.split()) or None if isinstance(value, str) else None
