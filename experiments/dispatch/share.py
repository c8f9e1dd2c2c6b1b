"""A share of a sweep: runs that another process works on, as plain data."""

import contextlib
import dataclasses
import os
import pathlib
import sys
import threading
from collections.abc import Sequence
from typing import Any

from experiments.execute import POLL, execute
from experiments.group import Group, plan
from experiments.members import Member
from experiments.signals import calling


@dataclasses.dataclass(frozen=True)
class Share:
    """What a worker needs; everything else is on disk.

    runs: config, choices and overrides of each run.
    shared: overrides of the whole sweep.
    cwd: where relative paths of the configs start.
    paths: entries of sys.path that a user's own parts may need.
    threads: for runs whose config leaves their number open.
    stop_file: once it is there, every run is saved and the worker returns.
    """

    runs: tuple[dict[str, Any], ...]
    shared: frozenset[str]
    cwd: str
    paths: tuple[str, ...]
    threads: int
    stop_file: str


def shares_of(
    groups: Sequence[Group],
    n_workers: int,
    *,
    shared: frozenset[str],
    threads: int,
    stop_file: str,
) -> list[tuple[Share, list[Member]]]:
    """The pending runs in shares of one program each, about `n_workers` equal ones.

    A program is cut into shares only where there are workers for them: each compiles it
    (or reads it from the cache) once.
    """
    total = sum(len(group.pending) for group in groups)
    size = max(1, -(-total // max(n_workers, 1)))
    shares = []
    for group in groups:
        members = group.pending
        n_parts = -(-len(members) // size)
        for i in range(n_parts):
            part = members[i::n_parts]
            shares.append((share_of(part, shared, threads, stop_file), part))
    # Long ones first: no worker is left with the longest when the others are done.
    return sorted(shares, key=lambda share: -len(share[1]))


def share_of(
    members: Sequence[Member], shared: frozenset[str], threads: int, stop_file: str
) -> Share:
    """One share of these members."""
    return Share(
        runs=tuple(
            {
                "node": member.config.to_config(),
                "choices": dict(member.config.choices),
                "overrides": tuple(member.config.overrides),
            }
            for member in members
        ),
        shared=shared,
        cwd=os.getcwd(),
        paths=tuple(path for path in sys.path if path),
        threads=threads,
        stop_file=stop_file,
    )


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a run ended, for the launching process; numbers are in its folder."""

    state: str
    error: str | None = None
    note: str | None = None


def work(share: Share, stop: threading.Event | None = None) -> list[Outcome]:
    """Runs a share in this process: what every kind of worker calls.

    The signals of `experiments.signals` and the stop file have the runs saved.
    """
    # Late: a worker of a GPU machine has chosen its device by now.
    from experiments.config import Config
    from experiments.environment import set_up

    os.chdir(share.cwd)
    sys.path.extend(path for path in share.paths if path not in sys.path)
    configs = []
    for run in share.runs:
        config = Config.parse(
            run["node"], choices=run["choices"], overrides=run["overrides"]
        )
        if config.runtime.threads is None:
            runtime = dataclasses.replace(config.runtime, threads=share.threads)
            config = dataclasses.replace(config, runtime=runtime)
        configs.append(config)
    set_up(configs[0].runtime.compilation_cache)
    groups = plan(configs, share.shared)
    stop = stop or threading.Event()
    with _stopped_from_outside(stop, pathlib.Path(share.stop_file)):
        execute(groups, stop)
    members = {_key(m.config): m for group in groups for m in group.members}
    found = [members[_key(config)] for config in configs]
    return [Outcome(m.state, m.error, m.note) for m in found]


def _key(config) -> tuple[str, str]:
    return str(config.folder), config.identity("")


@contextlib.contextmanager
def _stopped_from_outside(stop: threading.Event, file: pathlib.Path):
    """In here signals and the stop file set the event."""
    done = threading.Event()

    def look():
        while not done.wait(POLL):
            if file.exists():
                stop.set()
                return

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        with calling(lambda *_: stop.set()):
            yield
    finally:
        done.set()
        thread.join()
