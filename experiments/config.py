"""The dataclasses behind `conf/`: a composed config, checked and typed."""

import dataclasses
import hashlib
import json
import pathlib
import re
import typing
from typing import Any

from experiments import distributed
from experiments.compatibility.message import blamed, refusal
from experiments.errors import ConfigError, nearest, other_name
from experiments.fingerprint import fingerprint
from experiments.growth import can_grow
from experiments.parts import Part, coerce, shown
from experiments.released_values import without_strangers
from experiments.sharding import MeshShape

PARTS = ("model", "data", "optimizer", "schedule", "task")
OPTIONAL_PARTS = ("averaging",)  # null: none
INLINE = {"_target_": "experiments.dispatch.inline.Inline"}
# What a launch makes again: runs that failed, those that diverged too, or none of them.
RETRY = ("failed", "diverged", None)
SEVERAL = ("logger",)  # groups of which a list may be chosen


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """`runtime.checkpoint`: when state is saved. `every` null saves only at the end."""

    every: int | None = 500
    keep: int = 2


@dataclasses.dataclass(frozen=True)
class Runtime:
    """How and where runs are executed: no part of what a run is."""

    output_dir: str = "outputs"
    layout: str = "auto"
    threads: int | None = None
    mesh: MeshShape = dataclasses.field(default_factory=MeshShape)
    distributed: str | dict[str, Any] | None = None  # processes that work as one
    compilation_cache: str | None = "auto"
    memory_gib: float | None = None
    explain: bool = False
    profile: str | None = None  # steps to trace, "first:last"
    report: bool = False
    retry: str | None = "failed"  # which finished states are made again
    shard: str | None = None  # "3/16": this share of the sweep
    script: str | None = None  # a file that gets a line per run, and nothing is run
    allow_code_change: bool = False
    locate_divergence: bool = True  # look into the step at which a run diverged
    extend_from: str | None = None  # a run whose last checkpoint this one starts from
    dispatch: dict[str, Any] = dataclasses.field(default_factory=lambda: dict(INLINE))
    checkpoint: Checkpoint = dataclasses.field(default_factory=Checkpoint)
    loggers: dict[str, Any] = dataclasses.field(default_factory=dict)  # nodes of parts

    def dispatch_part(self) -> Part:
        """`dispatch`, checked.

        Raises:
            ConfigError: as `Part.parse`.
        """
        return Part.parse(self.dispatch, "runtime.dispatch")

    @property
    def share(self) -> tuple[int, int]:
        """`shard` as (number of the share from 0, shares)."""
        if self.shard is None:
            return 0, 1
        k, n = self.shard.split("/")
        return int(k) - 1, int(n)

    def logger_parts(self) -> dict[str, Part]:
        """`loggers`, checked.

        Raises:
            ConfigError: as `Part.parse`.
        """
        return {
            name: Part.parse(node, f"runtime.loggers.{name}")
            for name, node in self.loggers.items()
        }


@dataclasses.dataclass(frozen=True)
class Weights:
    """`weights`: what the parameters are before the first step.

    path: a folder with config.json and safetensors, or of a run; null initializes them.
    changed: keys of the model that are not those of the folder: what these parts lack
        in it is initialized, and what it has besides is left. Nothing changed: all of it
        has to fit.
    """

    path: str | None = None
    changed: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Config:
    """One run, fully resolved.

    `choices` (Hydra group -> choice) and `overrides` are how it was asked for; they are
    recorded and make names readable, and are no part of the run's identity.
    """

    name: str
    seed: int
    steps: int
    batch_size: int
    seq_len: int
    log_every: int
    accumulate: int
    tags: dict[str, Any]
    model: Part
    data: Part
    optimizer: Part
    schedule: Part
    averaging: Part | None
    task: Part
    runtime: Runtime
    choices: dict[str, Any]
    overrides: tuple[str, ...]
    weights: Weights = Weights()

    @classmethod
    def parse(
        cls,
        node: dict[str, Any],
        *,
        choices: dict[str, Any] | None = None,
        overrides: typing.Sequence[str] = (),
    ) -> "Config":
        """Checks a composed and resolved config.

        Raises:
            ConfigError: a missing, unknown, ill-typed or impossible value; the message
                names its key.
        """
        for override in overrides:
            key, _, value = override.lstrip("+").partition("=")
            group = key.split("@")[0]
            is_part = group in PARTS or group in OPTIONAL_PARTS
            chooses = "." not in group and (group not in node or is_part)
            chooses = chooses and group not in SEVERAL
            if value.startswith("[") and chooses:  # Hydra would merge the choices
                raise ConfigError(
                    f"{key}: expected one choice, got {value} "
                    f"(to run each, write -m {key}={value[1:-1]})"
                )
        node = without_strangers(node, (choices or {}).get("model"), overrides)
        fields = {f.name: f for f in dataclasses.fields(cls)}
        hints = typing.get_type_hints(cls)
        known = [key for key in fields if key not in ("choices", "overrides")]
        for key in node:
            if key not in known:
                name = other_name(key)
                hint = f"; did you mean {name}?" if name else nearest(key, known)
                if key in (choices or {}):
                    hint = " (its file lacks the first line, `# @package ...`)"
                raise ConfigError(f"{key}: no such key{hint}")
        values: dict[str, Any] = {}
        for key in known:
            if key not in node and key == "weights":  # configs from before there were
                continue
            if key not in node:
                raise ConfigError(f"{key}: missing from the config")
            if key in PARTS or (key in OPTIONAL_PARTS and node[key] is not None):
                values[key] = _part(node[key], key, choices or {})
            elif dataclasses.is_dataclass(hints[key]) and key not in PARTS:
                values[key] = from_mapping(hints[key], node[key], key)
            else:
                values[key] = coerce(node[key], hints[key], key)
        config = cls(**values, choices=dict(choices or {}), overrides=tuple(overrides))
        config.check()
        return config

    def check(self) -> None:
        """Refuses numbers that no run can have."""
        for key in ("steps", "batch_size", "seq_len", "log_every", "accumulate"):
            value = getattr(self, key)
            if not 1 <= value < 2**31:  # counted in int32 on the device
                raise ConfigError(f"{key}: must be in 1 .. 2**31 - 1, got {value}")
        if self.batch_size % self.accumulate:
            raise ConfigError(
                f"accumulate: must divide batch_size={self.batch_size}, "
                f"got {self.accumulate}"
            )
        for key, value in self.traced_values().items():
            if isinstance(value, int) and abs(value) >= 2**31:
                raise ConfigError(f"{key}: must be below 2**31, got {value}")
        if not 0 <= self.seed < 2**32:
            raise ConfigError(f"seed: must be in 0 .. 2**32 - 1, got {self.seed}")
        # Slashes make folders in folders, always below the output folder.
        folders = self.name.split("/")
        if any(f in ("", ".", "..") or f != f.strip() for f in folders) or not (
            self.name.isprintable() and "\\" not in self.name
        ):
            raise ConfigError(
                f"name: must be usable as a folder name, got {self.name!r}"
            )
        reason = refusal(self.model, self.choices)
        if reason is not None:
            raise ConfigError(reason)
        runtime = self.runtime
        if not runtime.output_dir.strip():
            raise ConfigError("runtime.output_dir: expected a folder, got nothing")
        if runtime.layout not in ("auto", "threads", "map", "vmap"):
            raise ConfigError(
                "runtime.layout: must be auto, threads, map or vmap, "
                f"got {runtime.layout!r}"
            )
        if runtime.threads is not None and runtime.threads < 1:
            raise ConfigError(
                f"runtime.threads: must be at least 1, got {runtime.threads}"
            )
        runtime.logger_parts()
        dispatch = runtime.dispatch_part()
        distributed.check(runtime.distributed)
        if runtime.distributed is not None:
            if dispatch.cls.is_elsewhere:
                raise ConfigError(
                    f"runtime.distributed: not with dispatch={dispatch.name}; start the "
                    "same command in each process instead (srun, say)"
                )
            if runtime.mesh.is_one:
                raise ConfigError(
                    "runtime.distributed: processes share work along the axes of "
                    "runtime.mesh, and all are 1 (runtime.mesh.members=-1, say)"
                )
        if runtime.retry not in RETRY:
            raise ConfigError(
                f"runtime.retry: must be failed, diverged or null, got {runtime.retry!r}"
            )
        if runtime.shard is not None:
            found = re.fullmatch(r"([1-9]\d*)/([1-9]\d*)", runtime.shard)
            if not found or int(found[1]) > int(found[2]):
                raise ConfigError(
                    "runtime.shard: expected a share as 3/16, the third of sixteen, "
                    f"got {runtime.shard!r}"
                )
        if runtime.memory_gib is not None and not runtime.memory_gib > 0:
            raise ConfigError(
                f"runtime.memory_gib: must be positive, got {runtime.memory_gib}"
            )
        if runtime.profile is not None:
            try:
                _, last = parse_span(runtime.profile)
            except ValueError as error:
                raise ConfigError(f"runtime.profile: {error}") from None
            if last > self.steps:
                raise ConfigError(
                    f"runtime.profile: there are {self.steps} steps, got {runtime.profile}"
                )
        every, keep = runtime.checkpoint.every, runtime.checkpoint.keep
        if every is not None and every < 1:
            raise ConfigError(
                f"runtime.checkpoint.every: must be at least 1 or null, got {every}"
            )
        if keep < 1:
            raise ConfigError(
                f"runtime.checkpoint.keep: must be at least 1, got {keep}"
            )

    @property
    def folder(self) -> pathlib.Path:
        """Where the run directory is put; `~` is the home folder."""
        return pathlib.Path(self.runtime.output_dir).expanduser() / self.name

    def to_config(self) -> dict[str, Any]:
        """The resolved config as plain data, defaults written out."""
        node = {
            f.name: getattr(self, f.name)
            for f in dataclasses.fields(self)
            if f.name not in ("choices", "overrides")
        }
        for key in (*PARTS, *OPTIONAL_PARTS):
            node[key] = node[key] and node[key].to_config()
        for key in ("runtime", "weights"):
            node[key] = dataclasses.asdict(getattr(self, key))
        return node

    def identity(self, data_fingerprint: str) -> str:
        """12 hex digits that are this run's own: what it is and on which data.

        Keywords at their defaults in the code do not enter, so a keyword added later
        leaves the names of old runs as they were.
        """
        node = {
            "seed": self.seed,
            "steps": self.steps,
            "batch_size": self.batch_size,
            "seq_len": self.seq_len,
            "data_fingerprint": data_fingerprint,
        }
        node |= {key: getattr(self, key).identity() for key in PARTS}
        if self.accumulate != 1:
            node["accumulate"] = self.accumulate
        if self.runtime.extend_from is not None:  # another start is another run
            node["extends"] = identity_in(self.runtime.extend_from)
        if self.averaging is not None:
            node["averaging"] = self.averaging.identity()
        if self.weights.path is not None:
            node["weights"] = fingerprint(self.weights.path)
        return digest(node)[:12]

    def traced_values(self) -> dict[str, float | int]:
        """Numbers that are inputs of the run's program, by config path."""
        values = {}
        for key in ("model", "optimizer", "schedule", "averaging"):
            part = getattr(self, key)
            values |= part.traced_values(key) if part else {}
        if self.traces_depth:
            values["model.n_layers"] = self.model["n_layers"]
        return values

    @property
    def traces_depth(self) -> bool:
        """Whether the depth is an input of the run's program.

        The task decides, where the model allows it.
        """
        return bool(self.task.get("any_depth", False)) and can_grow(self.model)


def identity_in(run_id: str) -> str:
    """The hash at the end of the name of a run's folder, or of a path to it."""
    return run_id.rstrip("/").rsplit("/", 1)[-1].rsplit("-", 1)[-1]


def _part(node: Any, key: str, choices: dict[str, Any]) -> Part:
    try:
        return Part.parse(node, key)
    except ConfigError as error:
        raise ConfigError(blamed(str(error), choices)) from None


def from_mapping(cls, node: Any, path: str) -> Any:
    """A (nested) dataclass from a mapping, with every key and type checked."""
    if not isinstance(node, dict):
        raise ConfigError(f"{path}: expected a mapping, got {shown(node)}")
    hints = typing.get_type_hints(cls)
    for key in node:
        if key not in hints:
            raise ConfigError(f"{path}.{key}: no such key{nearest(key, hints)}")
    values = {}
    for key, value in node.items():
        at = f"{path}.{key}"
        values[key] = (
            from_mapping(hints[key], value, at)
            if dataclasses.is_dataclass(hints[key])
            else coerce(value, hints[key], at)
        )
    return cls(**values)


def digest(node: Any) -> str:
    """sha256 of plain data in canonical JSON."""
    text = json.dumps(node, sort_keys=True, separators=(",", ":"), default=list)
    return hashlib.sha256(text.encode()).hexdigest()


def parse_span(text: str) -> tuple[int, int]:
    """'10:13' -> (10, 13): steps counted from 1.

    Raises:
        ValueError: not of that form, or no step lies in it.
    """
    first, colon, last = text.partition(":")
    if not (colon and first.isdigit() and last.isdigit()):
        raise ValueError(f"expected first:last, such as 10:13, got {text!r}")
    if not 1 <= int(first) <= int(last):
        raise ValueError(f"expected 1 <= first <= last, got {text!r}")
    return int(first), int(last)
