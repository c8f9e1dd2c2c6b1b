"""What all dispatchers to other processes do: hand out shares, watch, collect."""

import abc
import contextlib
import os
import pathlib
import threading
import time
import uuid
from collections.abc import Iterator, Sequence

from experiments.dispatch.share import Outcome, Share, share_of, shares_of
from experiments.environment import available_cores
from experiments.execute import POLL, Watcher
from experiments.group import Group, recall, shared_overrides
from experiments.members import Member
from experiments.run import line_of

ATTEMPTS = 3  # of a run whose worker process died


class WorkerDied(Exception):
    """The process that worked on a share is gone without a result."""


class Elsewhere(abc.ABC):
    """Runs shares of the groups in other processes.

    A subclass says how many workers there are and starts them; what they do is
    `experiments.dispatch.share.work`. Runs live in their folders: should the launching
    process die, workers go on, and the next launch collects.
    """

    is_elsewhere = True
    stops_with_launcher = True  # whether Ctrl-C here stops the workers

    @abc.abstractmethod
    def n_workers(self) -> int:
        """How many shares are worked on at a time."""

    def threads(self) -> int:
        """Python threads of a worker where the config leaves it open."""
        return max(1, available_cores() // self.n_workers())

    @abc.abstractmethod
    def workers(self) -> contextlib.AbstractContextManager["Workers"]:
        """Starts what runs shares; stops it at the end."""

    def execute(
        self, groups: Sequence[Group], stop: threading.Event, watcher: Watcher
    ) -> None:
        """Returns when every run is done or, once `stop` is set, saved."""
        members = [m for group in groups for m in group.members]
        if not any(m.state == "planned" for m in members):
            return
        shared = shared_overrides([m.config for m in members])
        with _stop_file(members[0].config.folder) as file:
            shares = shares_of(
                groups,
                self.n_workers(),
                shared=shared,
                threads=self.threads(),
                stop_file=str(file),
            )
            with self.workers() as workers:
                _follow(workers, shares, file, stop, watcher, self.stops_with_launcher)


class Workers(abc.ABC):
    """Runs shares, several at a time."""

    @abc.abstractmethod
    def submit(self, share: Share) -> object:
        """Starts work on a share, now or when a worker is free; a handle of it."""

    @abc.abstractmethod
    def is_done(self, handle: object) -> bool:
        """Whether `result` returns at once."""

    @abc.abstractmethod
    def result(self, handle: object) -> list[Outcome]:
        """Outcomes of the share's runs.

        Raises:
            WorkerDied: the process is gone.
            Exception: the worker could not begin.
        """


@contextlib.contextmanager
def _stop_file(folder: pathlib.Path) -> Iterator[pathlib.Path]:
    """A path in the sweep's folder, which every worker can see; removed at the end."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder.absolute() / f".stop-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    try:
        yield file
    finally:
        file.unlink(missing_ok=True)


def _follow(
    workers: Workers,
    shares: list[tuple[Share, list[Member]]],
    file: pathlib.Path,
    stop: threading.Event,
    watcher: Watcher,
    stops_with_launcher: bool,
) -> None:
    """Hands out shares and keeps the members up to date until all are done.

    When a worker dies, the runs of its share are handed out again one by one, so that
    the one that kills workers (by taking all memory, say) takes no other with it.
    """
    pending = [(workers.submit(share), share, members) for share, members in shares]
    deaths: dict[int, int] = {}
    looked = 0.0
    while pending:
        if stop.is_set():
            if not stops_with_launcher:
                watcher.say("the jobs go on; the same command collects what they made")
                return
            file.touch()
        left = []
        for handle, share, members in pending:
            if not workers.is_done(handle):
                left.append((handle, share, members))
                continue
            try:
                _collect(members, workers.result(handle), watcher)
            except WorkerDied as death:
                for member in members:
                    deaths[id(member)] = deaths.get(id(member), 0) + 1
                    if deaths[id(member)] < ATTEMPTS and not stop.is_set():
                        one = share_of(
                            [member], share.shared, share.threads, share.stop_file
                        )
                        left.append((workers.submit(one), one, [member]))
                    else:
                        _give_up(member, f"its worker process died: {death}", watcher)
            except Exception as error:
                line = line_of(error)
                for member in members:
                    _give_up(member, line, watcher)
        pending = left
        if time.monotonic() - looked > 1.0:
            looked = time.monotonic()
            for _, _, members in pending:
                _look(members)
        if pending:
            time.sleep(POLL / 5)


def _look(members: Sequence[Member]) -> None:
    """Where runs stand, for the display."""
    for member in members:
        status = member.directory.status()
        if status is not None and status.state == "running":
            member.step = status.step


def _collect(
    members: Sequence[Member], outcomes: Sequence[Outcome], watcher: Watcher
) -> None:
    for member, outcome in zip(members, outcomes, strict=True):
        member.directory.look_again()
        if member.directory.status() is not None:
            recall(member)
        member.state, member.error = outcome.state, outcome.error
        member.note = outcome.note
        watcher.on_end(member)


def _give_up(member: Member, reason: str, watcher: Watcher) -> None:
    """A run that came back without an outcome: what its folder says, else failed."""
    member.directory.look_again()
    status = member.directory.status()
    if status is not None and status.is_finished:
        recall(member)
        member.note = None
    else:
        member.state, member.error = "failed", reason
        member.step = status.step if status else 0
    watcher.on_end(member)
