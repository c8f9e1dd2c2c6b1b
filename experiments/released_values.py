"""Numbers of a released model that belong to a part which the user replaced."""

import functools
import pathlib
from collections.abc import Iterable
from typing import Any

import yaml

from experiments.parts import keywords_of

MODELS = pathlib.Path(__file__).resolve().parent.parent / "conf" / "model"


def without_strangers(
    node: dict[str, Any], model: str | None, overrides: Iterable[str]
) -> dict[str, Any]:
    """`node` without what the file of a model sets in a part that has no such keyword.

    `model=llama3_8b` sets the eps of its norm, and `norm=derf` has none. What somebody
    typed stays, to be refused.

    Args:
        node: a composed config. overrides: as typed.
    """
    values = _values(model) if model else {}
    if not values or not isinstance(node.get("model"), dict):
        return node
    typed = {o.lstrip("+~").partition("=")[0] for o in overrides}
    return {**node, "model": _without(node["model"], values, "model", typed)}


def _without(part: dict, values: dict, path: str, typed: set[str]) -> dict:
    known = keywords_of(part["_target_"], path) if "_target_" in part else part
    kept = dict(part)
    for key, value in values.items():
        at = f"{path}.{key}"
        if isinstance(value, dict) and isinstance(part.get(key), dict):
            kept[key] = _without(part[key], value, at, typed)
        elif key in kept and key not in known and at not in typed and key[0] != "_":
            del kept[key]
    return kept


@functools.cache
def _values(model: str) -> dict[str, Any]:
    """The mapping `model` of a file of the group; empty for one of another place."""
    file = MODELS / f"{model}.yaml"
    if not file.is_file():
        return {}
    node = yaml.safe_load(file.read_text(encoding="utf-8"))
    return node.get("model") or {}
