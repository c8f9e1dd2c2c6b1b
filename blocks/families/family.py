"""Families of released models, found by the files of this folder."""

import dataclasses
import difflib
import functools
import importlib
import pathlib
import pkgutil
from collections.abc import Callable

from blocks.families.fields import FamilyError, Fields
from blocks.families.tensors import Names


@dataclasses.dataclass(frozen=True)
class Family:
    """What a released model is: which parts, and which names its weights have.

    model_types: values of `model_type` in the configs it answers.
    overrides: fields of the config -> the command line that makes the model.
    names: fields of the config -> which tensor each parameter is.

    A module of this folder that has a `FAMILY` is a family; it holds no code of a model.
    """

    model_types: tuple[str, ...]
    overrides: Callable[[Fields], list[str]]
    names: Callable[[Fields], Names]


@functools.cache
def families() -> dict[str, Family]:
    """model_type -> family."""
    found = {}
    folder = pathlib.Path(__file__).parent
    for module in pkgutil.iter_modules([str(folder)]):
        made = importlib.import_module(f"blocks.families.{module.name}")
        family = getattr(made, "FAMILY", None)
        if family is not None:
            found |= dict.fromkeys(family.model_types, family)
    return found


def family_of(fields: Fields) -> Family:
    """The family that answers a config.

    Raises:
        FamilyError: none does.
    """
    known = families()
    kind = fields.get("model_type", None)
    if kind not in known:
        near = difflib.get_close_matches(str(kind), known, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise FamilyError(
            f"{fields.source}: model_type: expected one of "
            f"{', '.join(sorted(known))}, got {kind}{hint}"
        )
    return known[kind]


def overrides_of(fields: Fields) -> list[str]:
    """The command line that makes the model of a config.

    Raises:
        FamilyError: no family answers it, or it has a field or a value that its family
            does not compute.
    """
    overrides = family_of(fields).overrides(fields)
    fields.check()
    return overrides
