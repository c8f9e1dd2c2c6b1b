"""Jobs to groups by signature, and the execution of groups."""

import collections
import contextlib
import dataclasses
import functools
import os
import pathlib
import threading
from collections.abc import Sequence
from typing import Any

import jax

from experiments.config import Config, digest
from experiments.data.dataset import Dataset
from experiments.environment import describe, free_memory
from experiments.errors import ConfigError, UserError
from experiments.execution import Executables, MemberLayout, choose_layout
from experiments.members import Member
from experiments.optimizers.spectrum import first_update_spectrum
from experiments.parts import TRACED, Part
from experiments.program import Program, Signature
from experiments.run import BusyError, RunDirectory, last_value


class Watcher:
    """Is told what happens while groups run. This one does not care."""

    def on_end(self, member: Member) -> None:
        """A member is done with, for now or for good."""

    def say(self, line: str) -> None:
        """Something a person should know."""


@dataclasses.dataclass
class Group:
    """Runs that share one program.

    `members` are all of them; `pending` those that are not finished yet.
    """

    programs: Executables
    task: Any
    members: list[Member]

    @property
    def pending(self) -> list[Member]:
        return [m for m in self.members if m.state == "planned"]

    def env(self, member: Member) -> dict[str, Any]:
        """Contents of the member's env.json."""
        program, layout = self.programs.program, self.programs.layout
        dataset = program.dataset
        specs = program.layout_at(
            member.config.model["n_layers"] if member.config.traces_depth else None
        ).specs
        by_group = collections.defaultdict(list)
        for path, group in program.groups.items():
            by_group[group].append(path)
        return {
            **describe(),
            "signature": signature_digest(program.signature),
            "layout": layout.name,
            "group_size": len(self.members),
            "choices": member.config.choices,
            "data": {
                "fingerprint": dataset.fingerprint,
                "vocab_size": dataset.vocab_size,
                "unit": dataset.unit,
                "train_tokens": dataset.train_tokens,
                "validation_tokens": dataset.validation_tokens,
                "references": dataset.references,
            },
            "n_params": sum(spec.size for spec in specs.values()),
            "param_shapes": {path: list(spec.shape) for path, spec in specs.items()},
            "mixes_tokens": program.mixing_tokens,
            "optimizer": {
                "groups": dict(by_group),
                "first_update_spectrum": self.first_update_spectrum,
            },
        }

    @functools.cached_property
    def first_update_spectrum(self) -> dict[str, tuple[float, float]] | None:
        """Smallest and largest singular value of the first update of hidden kernels.

        Of an optimizer that orthogonalises, on gradients of normal noise: a kernel that
        is not taken for one would show here. None for the others.
        """
        optimizer = self.members[0].config.optimizer
        if not getattr(optimizer.cls, "is_orthogonal", False):
            return None
        specs = self.programs.program.layout.specs
        return first_update_spectrum(optimizer.build({}, "optimizer"), specs)


# Distinct data sets and programs kept ready in one process, the least used dropped first.
@functools.lru_cache(maxsize=8)
def load_dataset(source: Part) -> Dataset:
    """The data a source part describes, loaded once per process.

    Raises:
        ConfigError: the source cannot be read.
    """
    try:
        return source.build({}, "data").load()
    except ValueError as error:
        message = str(error)
        at = "" if message.startswith("data") else "data."
        raise ConfigError(f"{at}{message}") from None


@functools.lru_cache(maxsize=32)
def executables(signature: Signature, layout: MemberLayout) -> Executables:
    return Executables(Program(signature, load_dataset(signature.data)), layout)


def signature_digest(signature: Signature) -> str:
    """16 hex digits of a signature, for env.json."""
    node = dataclasses.asdict(signature)
    return digest(node)[:16]


def signature_of(config: Config, dataset: Dataset) -> Signature:
    """What the program of a run depends on."""
    model = config.model.static()
    if config.traces_depth:
        model = model.replace(n_layers=TRACED)
    return Signature(
        model=model,
        data=config.data,
        optimizer=config.optimizer.static(),
        schedule=config.schedule.static(),
        task=config.task,
        batch_size=config.batch_size,
        seq_len=config.seq_len,
        data_fingerprint=dataset.fingerprint,
        averaging=config.averaging and config.averaging.static(),
        accumulate=config.accumulate,
        traced=tuple(
            (path, isinstance(value, int))
            for path, value in sorted(config.traced_values().items())
        ),
    )


def check_fit(config: Config, dataset: Dataset) -> None:
    """Refuses a model and data that do not belong together.

    Raises:
        ConfigError: names the keys.
    """
    model, data = config.model, config.data
    reads_tokens = "vocab_size" in dict(model.keywords)
    if reads_tokens and dataset.vocab_size is None:
        raise ConfigError(
            f"data: {model.name} reads tokens, {data.name} has none "
            "(use data=stdlib or another source of tokens)"
        )
    if not reads_tokens:
        if dataset.vocab_size is not None:
            raise ConfigError(
                f"data: {model.name} reads rows of numbers, {data.name} has tokens "
                "(use data=gaussian)"
            )
        width = data.get("d_model", model["d_model"])
        if width != model["d_model"]:
            raise ConfigError(
                f"data.d_model: must equal model.d_model={model['d_model']}, got {width}"
            )
        return
    vocab_size = model["vocab_size"]
    if vocab_size is not None and vocab_size < dataset.vocab_size:
        raise ConfigError(
            f"model.vocab_size: the data have {dataset.vocab_size} symbols, "
            f"got {vocab_size}"
        )
    for split in ("train", "validation"):
        tokens = getattr(dataset, f"{split}_tokens")
        if tokens is not None and tokens <= config.seq_len:
            raise ConfigError(
                f"seq_len: the {split} data have {tokens} tokens, too few for windows "
                f"of {config.seq_len} + 1"
            )


def plan(configs: Sequence[Config]) -> list[Group]:
    """Groups the runs by program. Checks everything and creates nothing.

    A run asked for twice is planned once. Runs that are finished on disk are in their
    group with their final state.

    Raises:
        ConfigError: a run that cannot be.
    """
    alike: dict[Signature, list[Member]] = {}
    seen = set()
    overrides = [frozenset(c.overrides) for c in configs]
    shared = frozenset.intersection(*overrides) if len(configs) > 1 else frozenset()
    for config in configs:
        dataset = load_dataset(config.data)
        check_fit(config, dataset)
        _check_writable(config)
        directory = RunDirectory(config, dataset.fingerprint, shared)
        key = (directory.root, directory.identity)
        if key in seen:
            continue
        seen.add(key)
        signature = signature_of(config, dataset)
        alike.setdefault(signature, []).append(_member(config, directory))
    return [_group(signature, members) for signature, members in alike.items()]


def _writable(folder: pathlib.Path) -> bool:
    """Whether a folder could be made there and written in."""
    there = next(p for p in (folder, *folder.absolute().parents) if p.exists())
    return there.is_dir() and os.access(there, os.W_OK | os.X_OK)


def _check_writable(config: Config) -> None:
    if not _writable(config.folder):
        raise ConfigError(f"runtime.output_dir: cannot write in {config.folder}")


def _group(signature: Signature, members: list[Member]) -> Group:
    config = members[0].config
    task = config.task
    if task.get("any_depth", False) and not config.traces_depth:
        task = task.replace(any_depth=False)
    if config.traces_depth:
        deepest = max(m.config.model["n_layers"] for m in members)
        signature = dataclasses.replace(signature, capacity=deepest)
    layout = choose_layout(config.runtime.layout, config.runtime.threads)
    programs = executables(signature, layout)
    return Group(programs, task.build({}, "task"), members)


def _member(config: Config, directory: RunDirectory) -> Member:
    member = Member(config, directory)
    status = directory.status()
    if status is not None and status.is_finished:
        _recall(member)
    return member


def _recall(member: Member) -> None:
    """Fills in what a finished run left on disk."""
    status = member.directory.status()
    rows = member.directory.rows("metrics.jsonl")
    member.state = status.state
    member.step = status.step
    member.diverged_step = status.diverged_step
    member.loss = last_value(rows, "loss")
    if member.state != "diverged":
        member.val_loss = last_value(rows, "val_loss")
    member.note = "finished before"


def execute(
    groups: Sequence[Group],
    stop: threading.Event,
    watcher: Watcher | None = None,
) -> None:
    """Runs what is pending in the groups; returns when all is done or stopped.

    A run that fails is marked and its traceback kept; the others go on.

    Args:
        stop: set it to have every run save its state and return.
        watcher: is told what happens, from worker threads.
    """
    watcher = watcher or Watcher()
    queue = _Queue(groups)
    limit = free_memory(groups[0].members[0].config.runtime.memory_gib)
    memory = _Memory(limit, watcher)
    n_workers = max((g.programs.layout.n_workers for g in groups), default=1)
    n_workers = min(n_workers, max(queue.n_batches, 1))
    finished = threading.Semaphore(0)

    def work():
        try:
            _work(queue, memory, stop, watcher)
        finally:
            finished.release()

    for _ in range(n_workers):
        threading.Thread(target=work, daemon=True).start()
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
            if need <= limit or size == 1:
                break
            size = min(size - 1, max(1, int(size * limit / need)))
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
                opened.append(member)
        if opened:
            with jax.enable_x64(group.programs.program.signature.x64):
                group.task.run(group.programs, opened, stop)
    except BaseException as error:  # a failed run never takes others down
        for member in batch:
            if member.state in ("planned", "running"):
                member.state = "failed"
                member.error = f"{type(error).__name__}: {error}".splitlines()[0]
                if member in opened:
                    with contextlib.suppress(OSError):  # a full disk: said, not kept
                        member.directory.fail(error)
    finally:
        for member in batch:
            member.directory.close()
            with contextlib.suppress(Exception, SystemExit):
                watcher.on_end(member)


def _open(group: Group, member: Member) -> bool:
    """Takes the run's directory; whether there is something left to do in it."""
    try:
        if member.directory.open(group.env(member)):
            member.state = "running"
            return True
        _recall(member)
    except BusyError as error:
        member.state, member.note = "busy", str(error)
    except (UserError, OSError) as error:
        member.state, member.error = "failed", str(error)
    return False
