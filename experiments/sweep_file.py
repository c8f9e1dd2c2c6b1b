"""`sweep.json`: the runs that launches into a folder set out to make."""

import contextlib
import fcntl
import json
import os
import pathlib
from collections.abc import Sequence

from experiments.members import Member

FILE, SCHEMA = "sweep.json", 1


def note_plan(members: Sequence[Member]) -> None:
    """Adds runs to the sweep.json of their folders; what is there stays.

    So that what was planned and never begun can be seen on disk
    (`python -m analysis status`).

    Raises:
        OSError: a folder cannot be written.
    """
    by_folder: dict[pathlib.Path, list[Member]] = {}
    for member in members:
        by_folder.setdefault(member.directory.root, []).append(member)
    for folder, own in by_folder.items():
        folder.mkdir(parents=True, exist_ok=True)
        with _alone(folder):
            _add(folder / FILE, own)


@contextlib.contextmanager
def _alone(folder: pathlib.Path):
    """Two launchers would each write the runs of their own only."""
    with (folder / ".sweep.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _add(path: pathlib.Path, members: Sequence[Member]) -> None:
    known = {}
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        known = {run["identity"]: run for run in json.loads(path.read_text())["runs"]}
    before = dict(known)
    for member in members:
        known[member.directory.identity] = {
            "run_id": member.directory.path.name,
            "identity": member.directory.identity,
            "steps": member.config.steps,
            "overrides": list(member.config.overrides),
        }
    if known == before:
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(json.dumps({"schema": SCHEMA, "runs": list(known.values())}))
    temporary.replace(path)
