"""Jobs to groups by signature."""

import collections
import dataclasses
import functools
import os
import pathlib
from collections.abc import Sequence
from typing import Any

import jax

from experiments import distributed
from experiments.config import Config, Weights, digest
from experiments.data.dataset import Dataset
from experiments.environment import describe
from experiments.errors import ConfigError
from experiments.execution import Executables, MemberLayout, choose_layout
from experiments.extension import source_of
from experiments.fit import check_fit
from experiments.following import directory_of
from experiments.loggers.guarded import check_installed
from experiments.members import Member
from experiments.optimizers.spectrum import first_update_spectrum
from experiments.parts import TRACED, Part
from experiments.program import Program, Signature
from experiments.run import RunDirectory, last_value
from experiments.weights import check_weights, fit_of
from experiments.weights import record as weights_record


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
        weights = member.config.weights
        by_group = collections.defaultdict(list)
        for path, group in program.groups.items():
            by_group[group].append(path)
        return {
            **describe(),
            "signature": signature_digest(program.signature),
            "layout": layout.name,
            "mesh": None if layout.mesh.is_one else layout.mesh.sizes,
            "n_processes": jax.process_count(),
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
            "weights": weights_record(self.fits[weights], weights)
            if weights.path is not None
            else None,
            "optimizer": {
                "groups": dict(by_group),
                "first_update_spectrum": self.first_update_spectrum,
            },
        }

    @functools.cached_property
    def fits(self) -> dict[Weights, Any]:
        """What the model takes of the weights that members start from.

        Raises:
            ConfigError: they do not fit.
        """
        named = dict.fromkeys(m.config.weights for m in self.members)
        layout = self.programs.program.layout
        return {w: fit_of(w, layout) for w in named if w.path is not None}

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


@functools.lru_cache(maxsize=32)
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


def shared_overrides(configs: Sequence[Config]) -> frozenset[str]:
    """What all runs of a sweep were asked for with; left out of the folders' names."""
    overrides = [frozenset(c.overrides) for c in configs]
    return frozenset.intersection(*overrides) if len(configs) > 1 else frozenset()


def plan(
    configs: Sequence[Config], shared: frozenset[str] | None = None
) -> list[Group]:
    """Groups the runs by program. Checks everything and creates nothing.

    A run asked for twice is planned once. Runs that are finished on disk are in their
    group with their final state.

    Args:
        shared: `shared_overrides` of the sweep that these runs are a part of; None takes
            them for the whole of it.

    Raises:
        ConfigError: a run that cannot be.
    """
    alike: dict[Signature, list[Member]] = {}
    seen = set()
    shared = shared_overrides(configs) if shared is None else shared
    if configs:
        # Before anything looks at the devices.
        distributed.start(configs[0].runtime.distributed)
    for config in configs:
        dataset = load_dataset(config.data)
        check_fit(config, dataset)
        check_weights(config)
        _check_writable(config)
        check_installed(config)
        if config.runtime.extend_from is not None:
            source_of(config)
        directory = directory_of(config, dataset.fingerprint, shared)
        key = (directory.root, directory.identity)
        if key in seen:
            continue
        seen.add(key)
        signature = signature_of(config, dataset)
        alike.setdefault(signature, []).append(_member(config, directory))
    groups = [_group(signature, members) for signature, members in alike.items()]
    for group in groups:
        _ = group.fits  # refuses weights that do not fit
    return groups


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
    mesh = config.runtime.mesh
    layout = choose_layout(config.runtime.layout, config.runtime.threads, mesh)
    programs = executables(signature, layout)
    for member in members:
        member.item = programs.program.item
    if not mesh.is_one:
        # Elsewhere the devices are others; who works there plans again.
        here = not config.runtime.dispatch_part().cls.is_elsewhere
        shape = layout.mesh if here else mesh
        shape.check(config, programs.program.layout.specs)
    return Group(programs, task.build({}, "task"), members)


def _member(config: Config, directory: RunDirectory) -> Member:
    member = Member(config, directory)
    status = directory.status()
    if status is not None and not directory.is_wanted_again(status):
        recall(member)
    return member


def recall(member: Member) -> None:
    """Fills in what a finished run left on disk."""
    status = member.directory.status()
    rows = member.directory.rows("metrics.jsonl")
    member.state = status.state
    member.step = status.step
    member.diverged_step = status.diverged_step
    member.error = status.error
    member.loss = last_value(rows, "loss")
    if member.state != "diverged":
        member.recall_evaluation(rows)
    member.note = "finished before"


def share_of_sweep(groups: Sequence[Group], share: tuple[int, int]) -> list[Group]:
    """The k-th of n equal shares of the runs, k from 0, in the order of the groups.

    Of all runs, finished or not: each of n launches finds the same shares. Runs of one
    program stay together as far as they can.
    """
    k, n = share
    members = [(group, member) for group in groups for member in group.members]
    first, last = (len(members) * i // n for i in (k, k + 1))
    own = collections.defaultdict(list)
    for group, member in members[first:last]:
        own[id(group)].append(member)
    return [
        dataclasses.replace(group, members=own[id(group)])
        for group in groups
        if own[id(group)]
    ]
