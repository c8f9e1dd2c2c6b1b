"""Reads one run folder as plain Python, whatever state it was left in.

A run may be unfinished, killed while it wrote a line, or failed before it wrote
anything. Nothing here raises for that: what could not be read is left out and named
in `problems`, so that a report can say so.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path

FILES = (
    "config.json",
    "status.json",
    "env.json",
    "metrics.jsonl",
    "probes.jsonl",
    "error.txt",
)

# A bare NaN or Infinity is not JSON, but Python's reader takes it: read it as the
# null that the run directory prescribes for a number that is not finite.
_DECODER = json.JSONDecoder(parse_constant=lambda _: None)


@dataclass
class RawRun:
    """The files of one run, parsed and not yet interpreted."""

    run_id: str
    config: dict = field(default_factory=dict)
    status: dict = field(default_factory=dict)
    env: dict = field(default_factory=dict)
    metrics: list[dict] = field(default_factory=list)
    probes: list[dict] = field(default_factory=list)
    error: str | None = None
    problems: list[str] = field(default_factory=list)


def is_run(folder: Path) -> bool:
    """A run is a folder that holds at least one of the files of a run."""
    return folder.is_dir() and any((folder / name).is_file() for name in FILES)


def read_run(folder: Path) -> RawRun:
    """Reads what there is; files that are missing or broken are named in `problems`."""
    run = RawRun(run_id=folder.name)
    notes = run.problems
    run.config = _read_mapping(folder / "config.json", notes)
    run.status = _read_mapping(folder / "status.json", notes)
    run.env = _read_mapping(folder / "env.json", notes)
    run.metrics = _read_rows(folder / "metrics.jsonl", _metric_fault, notes)
    run.probes = _read_rows(folder / "probes.jsonl", _probe_fault, notes)
    run.error = _error_line(run.status, folder / "error.txt")
    if run.status.get("state") == "completed" and not run.metrics:
        notes.append("metrics.jsonl: no rows although the run completed")
    return run


def _read_mapping(path: Path, notes: list[str]) -> dict:
    try:
        value = _DECODER.decode(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        notes.append(f"{path.name}: missing")
        return {}
    except (OSError, ValueError) as error:
        notes.append(f"{path.name}: unreadable ({type(error).__name__})")
        return {}
    if not isinstance(value, dict):
        notes.append(f"{path.name}: a mapping was expected, got {type(value).__name__}")
        return {}
    return value


def _read_rows(path: Path, fault_of, notes: list[str]) -> list[dict]:
    try:
        # A line cut inside a character must not take the whole file with it.
        text = path.read_bytes().decode("utf-8", errors="replace")
    except FileNotFoundError:
        return []
    except OSError as error:
        notes.append(f"{path.name}: unreadable ({type(error).__name__})")
        return []
    lines = text.split("\n")
    rows = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = _DECODER.decode(line)
            fault = fault_of(row)
        except ValueError:
            # Only a last line may be cut; anything else is worth a different word.
            fault = "cut" if number == len(lines) else "not JSON"
        if fault is None:
            rows.append(row)
        else:
            notes.append(f"{path.name}: line {number} dropped ({fault})")
    return rows


def _metric_fault(row) -> str | None:
    if not isinstance(row, dict):
        return "not a mapping"
    if type(row.get("step")) is not int:
        return "no integer step"
    return None


def _probe_fault(row) -> str | None:
    fault = _metric_fault(row)
    if fault is not None:
        return fault
    if not isinstance(row.get("quantity"), str):
        return "no quantity"
    values = row.get("values")
    if not isinstance(values, list):
        return "values is not a list"
    if any(type(v) not in (float, int, type(None)) for v in values):
        return "values are not numbers"
    return None


def _error_line(status: dict, path: Path) -> str | None:
    """`status.json` has the line; a launcher that died may have left only the trace."""
    if isinstance(status.get("error"), str):
        return status["error"]
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError:
        return None
    filled = [line.strip() for line in lines if line.strip()]
    return filled[-1] if filled else None
