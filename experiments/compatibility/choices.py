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
    "dtype": ("float32", "bfloat16", "float64"),
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
    is_part = "_target_" in _file(CONF / group / f"{choice}.yaml")
    return is_part and not _overrides(group, choice)


def is_choice(key: str, choice: str) -> bool:
    """Whether there is such a file here; users may have some of their own."""
    return (CONF / key.partition("@")[0] / f"{choice}.yaml").exists()


def implied(row: Row) -> Row:
    """The row and what its choices choose in other groups, unless the row does.

    Of two that choose in the same group the later one in the main list wins.
    """
    found = dict(row)
    for key in defaults():
        for group, other in _overrides(key, row.get(key)):
            if group not in row:
                found[group] = other
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
        if node["model"].get("pattern", 0) is None:
            node["model"]["pattern"] = {}  # as Hydra does
        merge(node, placed(f"{key.removeprefix('pattern.')}@model.{key}", choice))
    values = {k: OmegaConf.create(f"x: {row[k]}").x for k in VALUES if row.get(k)}
    known = {k: v for k, v in sizes.items() if k in node["model"]}
    node["model"].update(known, **values)
    return _resolved(node, node)


def command_line(row: Row, **sizes) -> list[str]:
    """The overrides that make Hydra compose the same config."""
    words = []
    known = {axis.name for axis in axes()}
    words += [f"{key}={choice}" for key, choice in row.items() if key not in known]
    for axis in axes():
        choice = row.get(axis.name)
        if choice is not None:
            words.append(f"{axis.key}={choice}")
        elif axis.name in row and defaults().get(axis.name) is not None:
            words.append(f"~{axis.key}")
    if "pattern" not in row and any("@" in word for word in words):
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
    node = copy.deepcopy(node)
    parts: dict = {}
    for inner, other in _entries(group, choice).items():
        if other is not None and not inner.startswith("override "):
            inner, _, below = inner.lstrip("/").partition("@")
            at = "" if place == "_global_" else f"{place}."
            merge(parts, placed(f"{inner}@{at}{below}", other))
    # A file's own values win over those of its parts where it says _self_ last, as all
    # of ours do that set any.
    merge(parts, node)
    return parts


def merge(node: dict, other: dict) -> None:
    """Values of `other` win; mappings are merged."""
    for key, value in other.items():
        if isinstance(value, dict) and isinstance(node.get(key), dict):
            merge(node[key], value)
        else:
            node[key] = copy.deepcopy(value)


def _overrides(key: str, choice: str | None) -> list[tuple[str, str | None]]:
    """Group -> choice, as the file of a choice overrides the main defaults list."""
    if choice is None or key in VALUES or key.startswith("pattern."):
        return []
    return [
        (entry.removeprefix("override ").lstrip("/"), other)
        for entry, other in _entries(key.partition("@")[0], choice).items()
        if entry.startswith("override ")
    ]


def _entries(group: str, choice: str) -> dict[str, str | None]:
    """The defaults list of the file of a choice."""
    entries = _file(CONF / group / f"{choice}.yaml").get("defaults", [])
    named = [entry for entry in entries if entry != "_self_"]
    return {key: other for entry in named for key, other in entry.items()}


def _resolved(value: Any, root: dict) -> Any:
    if isinstance(value, dict):
        return {k: _resolved(v, root) for k, v in value.items()}
    if isinstance(value, str) and value.startswith("${"):
        return functools.reduce(dict.__getitem__, value[2:-1].split("."), root)
    return value


@functools.cache
def _file(path: pathlib.Path) -> dict[str, Any]:
    return OmegaConf.to_container(OmegaConf.load(path))
