"""Groups run in this process: threads that take batches of members."""

import collections
import contextlib
import threading
from collections.abc import Sequence

import jax

from experiments import distributed
from experiments.environment import free_memory
from experiments.errors import UserError
from experiments.group import Group, recall
from experiments.loggers.guarded import Loggers
from experiments.members import Member
from experiments.run import BusyError, line_of

THREAD = "blocklab-worker"  # how the names of threads that train begin
POLL = 0.5  # seconds between looks at what other processes are doing


class Watcher:
    """Is told what happens while groups run. This one does not care."""

    def on_end(self, member: Member) -> None:
        """A member is done with, for now or for good."""

    def say(self, line: str) -> None:
        """Something a person should know."""


def execute(
    groups: Sequence[Group],
    stop: threading.Event,
    watcher: Watcher | None = None,
) -> None:
    """Runs what is pending in the groups; returns when all is done or stopped.

    A run that fails is marked and its traceback kept; the others go on. A run that
    another launcher is at work on is waited for, and taken over if that one dies.

    Args:
        stop: set it to have every run save its state and return.
        watcher: is told what happens, from worker threads.
    """
    watcher = watcher or Watcher()
    distributed.meet("planned")  # nobody writes before all have looked
    stop = distributed.AgreedStop(stop) if distributed.is_shared() else stop
    waited = False
    while any(group.pending for group in groups):
        _run_pending(groups, stop, watcher)
        busy = [m for group in groups for m in group.members if m.state == "busy"]
        if not busy or stop.is_set():
            break
        if not waited:
            waited = True
            n = "1 run is" if len(busy) == 1 else f"{len(busy)} runs are"
            watcher.say(
                f"{n} being made by another launcher: waiting (Ctrl-C leaves them to it)"
            )
        _await_any(busy, stop)
    for group in groups:
        for member in group.members:
            if member.state == "busy":
                watcher.on_end(member)


def _await_any(busy: Sequence[Member], stop: threading.Event) -> None:
    """Returns once a run is nobody's any more: done, or its launcher gone."""
    while not stop.is_set():
        free = [member for member in busy if not member.directory.is_taken()]
        for member in free:
            member.state, member.note = "planned", None
        if free:
            return
        for member in busy:
            status = member.directory.status()
            member.step = status.step if status else member.step
        stop.wait(POLL)


def _run_pending(
    groups: Sequence[Group], stop: threading.Event, watcher: Watcher
) -> None:
    queue = _Queue(groups)
    limit = free_memory(groups[0].members[0].config.runtime.memory_gib)
    limit = min(distributed.everyones(limit))  # all must cut alike
    memory = _Memory(limit, watcher)
    n_workers = max((g.programs.layout.n_workers for g in groups), default=1)
    n_workers = min(n_workers, max(queue.n_batches, 1))
    finished = threading.Semaphore(0)

    def work():
        try:
            _work(queue, memory, stop, watcher)
        finally:
            finished.release()

    for i in range(n_workers):
        threading.Thread(target=work, name=f"{THREAD}-{i}", daemon=True).start()
    for _ in range(n_workers):
        # Not a join: interrupted, it would take a running thread for a finished one.
        # With a limit, so that signals are seen.
        while not finished.acquire(timeout=0.2):
            pass


class _Memory:
    """Bytes that batches take together: one that does not fit waits for others to end.

    A batch that is larger than everything runs alone.
    """

    def __init__(self, limit: float, watcher: Watcher):
        self.limit = limit
        self._watcher = watcher
        self._taken = 0
        self._changed = threading.Condition()
        self._has_said = False

    @contextlib.contextmanager
    def take(self, need: int):
        with self._changed:
            if self._taken and self._taken + need > self.limit:
                self._say(need)
                self._changed.wait_for(
                    lambda: not self._taken or self._taken + need <= self.limit
                )
            self._taken += need
        try:
            yield
        finally:
            with self._changed:
                self._taken -= need
                self._changed.notify_all()

    def _say(self, need: int) -> None:
        if not self._has_said:
            self._has_said = True
            self._watcher.say(
                f"fewer runs at a time: another would need {need / 2**30:.2f} GiB and "
                f"{self._taken / 2**30:.2f} of {self.limit / 2**30:.2f} GiB are taken"
            )


class _Queue:
    """Batches of members, handed out so that no thread waits for a compilation.

    A thread gets work of a program that is ready, else starts a program nobody has
    started; only if every program left is being compiled does it wait.
    """

    def __init__(self, groups: Sequence[Group]):
        self._pending = [
            (group, collections.deque(group.programs.layout.batches(group.pending)))
            for group in groups
            if group.pending
        ]
        self.n_batches = sum(len(batches) for _, batches in self._pending)
        self._started: set[int] = set()
        self._changed = threading.Condition()

    def take(self) -> tuple[Group, list[Member]] | None:
        with self._changed:
            while True:
                left = [(g, b) for g, b in self._pending if b]
                if not left:
                    return None
                for group, batches in left:
                    if group.programs.is_ready(group.task.functions):
                        return group, batches.popleft()
                for group, batches in left:
                    if id(group) not in self._started:
                        self._started.add(id(group))
                        return group, batches.popleft()
                self._changed.wait(0.02)

    def give_up_waiting(self, group: Group) -> None:
        """A batch of the group has ended: if its program failed, others may try."""
        with self._changed:
            self._started.discard(id(group))
            self._changed.notify_all()


def _work(
    queue: _Queue, memory: _Memory, stop: threading.Event, watcher: Watcher
) -> None:
    while not stop.is_set():
        taken = queue.take()
        if taken is None:
            return
        group, batch = taken
        for part, need in _fitting(group, batch, memory.limit, watcher):
            with memory.take(need):
                if not stop.is_set():
                    _run_batch(group, part, stop, watcher)
        queue.give_up_waiting(group)


def _fitting(
    group: Group, batch: list[Member], limit: float, watcher: Watcher
) -> list[tuple[list[Member], int]]:
    """Compiles the program; cuts a batch that is too large. Parts and their bytes."""
    programs, functions = group.programs, group.task.functions
    size = len(batch)
    try:
        while True:
            programs.prepare(functions, size)
            need = programs.memory(size, functions)
            if need <= limit or size <= programs.layout.mesh.members:
                break
            size = min(size - 1, max(1, int(size * limit / need)))
            size = programs.layout.smaller(size)
    except Exception:  # said by the run that asks for the program again
        return [(batch, 0)]
    if size < len(batch):
        parts = -(-len(batch) // size)
        watcher.say(
            f"a group of {len(batch)} runs is cut into {parts}: together they need "
            f"more than the {limit / 2**30:.2f} GiB there are, {size} of them "
            f"{need / 2**30:.2f} GiB"
        )
    return [(batch[i : i + size], need) for i in range(0, len(batch), size)]


def _run_batch(
    group: Group, batch: list[Member], stop: threading.Event, watcher: Watcher
) -> None:
    """Runs members that share calls; whatever happens, each ends in some state.

    Not even an exit raised in here (by a broken pipe under the display, say) may end the
    thread: other runs wait for it.
    """
    opened = []
    try:
        for member in batch:
            if _open(group, member):
                if distributed.is_first():
                    member.loggers = Loggers.of(member.config, watcher.say)
                opened.append(member)
        if opened:
            with jax.enable_x64(group.programs.program.signature.x64):
                group.task.run(group.programs, opened, stop)
    except BaseException as error:  # a failed run never takes others down
        for member in batch:
            if member.state in ("planned", "running"):
                member.state = "failed"
                member.error = line_of(error)
                if member in opened:
                    member.directory.fail(error)
        distributed.leave(line_of(error))
    finally:
        for member in batch:
            member.loggers.close(member.state)
            member.directory.close()
            if member.state != "busy":
                with contextlib.suppress(Exception, SystemExit):
                    watcher.on_end(member)


def _open(group: Group, member: Member) -> bool:
    """Takes the run's directory; whether there is something left to do in it."""
    try:
        if member.directory.open(group.env(member)):
            member.state = "running"
            return True
        recall(member)
    except BusyError as error:
        member.state, member.note = "busy", str(error)
    except (UserError, OSError) as error:
        member.state, member.error = "failed", str(error)
    return False
