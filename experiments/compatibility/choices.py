"""The axes of a model: what can be chosen, and the config that a row of choices makes.

Hydra composes a config in 0.1 to 0.2 s. Thousands of rows are put together here instead,
by the same rules from the same files; a test compares the two.
"""

import copy
import dataclasses
import functools
import pathlib
from typing import Any

from omegaconf import OmegaConf

from experiments.catalogue.text import package_of

CONF = pathlib.Path(__file__).parents[2] / "conf"

Row = dict[str, str | None]  # axis -> choice

# Groups of the default config that are no part of the model: not combined here.
APART = ("model", "schedule", "data", "task", "experiment")

# Parts that a pattern may replace, and values that concern several parts.
REPLACED = ("attention", "ffn", "placement")
VALUES = {
    "dtype": ("float32", "bfloat16", "float16", "float64"),
    "n_kv_heads": (None, "1"),
    "tied_head": ("false", "true"),
}
# Every second block has the parts of the pattern, so that all sizes below have both.
PATTERN_VALUES = {"every_nth": {"every": 2}}
SIZES = {"vocab_size": 16, "d_model": 32, "n_layers": 4, "n_heads": 2, "d_ff": 64}


@dataclasses.dataclass(frozen=True)
class Axis:
    """name: a config group, `pattern.` and a group, or a key of the model."""

    name: str
    choices: tuple[str | None, ...]

    @property
    def key(self) -> str:
        """What is written on the command line."""
        if self.name in VALUES:
            return f"model.{self.name}"
        group = self.name.removeprefix("pattern.")
        at = group != self.name
        return f"+{group}@model.{self.name}" if at else group


@functools.cache
def axes() -> tuple[Axis, ...]:
    """Every group of choices that makes a model, and the optimizer; null where it may."""
    found = []
    for key, default in defaults().items():
        if "@" not in key and key not in APART:
            names = sorted(p.stem for p in (CONF / key).glob("*.yaml"))
            found.append(Axis(key, (*((None,) if default is None else ()), *names)))
    by_name = {axis.name: axis for axis in found}
    for group in REPLACED:
        alone = [c for c in by_name[group].choices if is_alone(group, c)]
        found.append(Axis(f"pattern.{group}", (None, *alone)))
    found += [Axis(key, values) for key, values in VALUES.items()]
    return tuple(found)


@functools.cache
def defaults() -> dict[str, str | None]:
    """Group, `@place` included -> choice: the defaults list of the main config."""
    found = {}
    for entry in _file(CONF / "config.yaml")["defaults"]:
        if isinstance(entry, dict):
            ((key, choice),) = entry.items()
            if not key.startswith("override "):
                found[key] = choice
    return found


def is_alone(group: str, choice: str) -> bool:
    """Whether a choice is one part, and sets nothing anywhere else."""
    node = _file(CONF / group / f"{choice}.yaml")
    return "_target_" in node and "defaults" not in node


def exists(key: str, choice: str) -> bool:
    """Whether a choice is one of these files; users may have some of their own."""
    return (CONF / key.partition("@")[0] / f"{choice}.yaml").exists()


def implied(row: Row) -> Row:
    """The row and what its choices choose in other groups, unless the row does."""
    asked, found = [], dict(row)
    pending = list(row.items())
    while pending:
        key, choice = pending.pop(0)
        for entry in _overrides(key, choice):
            if entry not in asked:
                asked.append(entry)
                if entry[0] not in row:
                    found[entry[0]] = entry[1]
                    pending.append(entry)
    return found


def config_of(row: Row, **sizes) -> dict[str, Any]:
    """The config of a row, as plain data; other groups have their defaults."""
    node = {
        k: copy.deepcopy(v)
        for k, v in _file(CONF / "config.yaml").items()
        if k not in ("defaults", "hydra")
    }
    chosen = {**defaults(), **implied(row)}
    for key in defaults():
        if chosen[key] is not None:
            merge(node, placed(key, chosen[key]))
    pattern = chosen.get("pattern")
    replaced = {k: c for k, c in row.items() if k.startswith("pattern.") and c}
    if replaced and "pattern" not in row:
        merge(node, placed("pattern", "every_nth"))
        pattern = "every_nth"
    if pattern in PATTERN_VALUES:
        merge(node, {"model": {"pattern": dict(PATTERN_VALUES[pattern])}})
    for key, choice in replaced.items():
        part = _file(CONF / key.removeprefix("pattern.") / f"{choice}.yaml")
        at = node["model"].setdefault("pattern", {})
        if at is None:
            at = node["model"]["pattern"] = {}
        at[key.removeprefix("pattern.")] = copy.deepcopy(part)
    values = {k: OmegaConf.create(f"x: {row[k]}").x for k in VALUES if row.get(k)}
    known = {k: v for k, v in sizes.items() if k in node["model"]}
    node["model"].update(known, **values)
    return _resolved(node, node)


def command_line(row: Row, **sizes) -> list[str]:
    """The overrides that make Hydra compose the same config."""
    words = []
    for axis in axes():
        choice = row.get(axis.name)
        if axis.name not in row or (
            choice is None and axis.name.startswith("pattern.")
        ):
            continue
        words.append(f"{axis.key}={'null' if choice is None else choice}")
    if not any(key == "pattern" for key in row) and any("@" in w for w in words):
        words.append("pattern=every_nth")
    for pattern, values in PATTERN_VALUES.items():
        if f"pattern={pattern}" in words:
            words += [f"model.pattern.{k}={v}" for k, v in values.items()]
    return words + [f"model.{k}={v}" for k, v in sizes.items()]


@functools.cache
def placed(key: str, choice: str) -> dict[str, Any]:
    """What a choice sets, at its place in the config. Not to be changed."""
    group, _, place = key.partition("@")
    file = CONF / group / f"{choice}.yaml"
    node = {k: v for k, v in _file(file).items() if k != "defaults"}
    place = place or package_of(file.read_text(encoding="utf-8")) or group
    for name in reversed(place.split(".") if place != "_global_" else []):
        node = {name: node}
    return node


def merge(node: dict, other: dict) -> None:
    """Values of `other` win; mappings are merged."""
    for key, value in other.items():
        if isinstance(value, dict) and isinstance(node.get(key), dict):
            merge(node[key], value)
        else:
            node[key] = copy.deepcopy(value)


def _overrides(key: str, choice: str | None) -> list[tuple[str, str | None]]:
    """Group -> choice, as the file of a choice overrides the defaults list."""
    if choice is None or key in VALUES or key.startswith("pattern."):
        return []
    node = _file(CONF / key.partition("@")[0] / f"{choice}.yaml")
    found = []
    for entry in node.get("defaults", []):
        ((group, other),) = entry.items()
        group = group.removeprefix("override ").lstrip("/")
        found.append((group.replace("@_global_.", "@"), other))
    return found


def _resolved(value: Any, root: dict) -> Any:
    if isinstance(value, dict):
        return {k: _resolved(v, root) for k, v in value.items()}
    if isinstance(value, str) and value.startswith("${"):
        return functools.reduce(dict.__getitem__, value[2:-1].split("."), root)
    return value


@functools.cache
def _file(path: pathlib.Path) -> dict[str, Any]:
    return OmegaConf.to_container(OmegaConf.load(path))
