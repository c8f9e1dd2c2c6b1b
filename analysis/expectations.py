"""What an experiment expected: the entries of `tags.expected`."""

import json
import math
from dataclasses import dataclass

import numpy as np
import polars as pl

from analysis.depths import LAYERS

# What ln g is fitted against.
FITS = {"power": np.log, "exponential": np.asarray, "sqrt": np.sqrt}
VAL_LOSS = "val_loss"


@dataclass(frozen=True)
class Expectation:
    """One entry of `tags.expected`.

    Attributes:
        id: name of the check, `A1`.
        variant: which runs: Hydra group -> choice, or dotted config path -> value.
        quantity: a probe and a layer, `ffn/up/kernel last` (`grad_norm/` may be left
            out), or `val_loss`, the last one of a run.
        fit: "power" (slope of ln g on ln L), "exponential" (on L, per block), "sqrt"
            (on sqrt(L)), or "mean" for `val_loss`.
        expected, tolerance: of the fitted number.
        source: where the number is from.
    """

    id: str
    variant: dict
    quantity: str
    fit: str
    expected: float
    tolerance: float
    source: str = ""


def expected_entries(runs: pl.DataFrame) -> list[dict]:
    """All different entries of `tags.expected` over the runs, in order of appearance.

    Raises:
        ValueError: `tags.expected` is not a list of mappings.
    """
    if any(column.startswith("config.tags.expected.") for column in runs.columns):
        raise ValueError("tags.expected must be a list of mappings, got a mapping")
    if "config.tags.expected" not in runs.columns:
        return []
    entries = {}
    for text in runs["config.tags.expected"].drop_nulls().unique(maintain_order=True):
        try:
            found = json.loads(text)
        except ValueError:
            found = None
        if not isinstance(found, list) or not all(isinstance(e, dict) for e in found):
            raise ValueError(f"tags.expected must be a list of mappings, got {text}")
        entries |= {json.dumps(entry, sort_keys=True): entry for entry in found}
    return list(entries.values())


def parse(entry: dict) -> Expectation:
    """Checks one entry.

    Raises:
        ValueError: a key that is missing, unknown, or of the wrong kind.
    """
    name = f"tags.expected entry {entry.get('id', entry)}"
    needed = {"id", "variant", "quantity", "fit", "expected", "tolerance"}
    missing, extra = needed - entry.keys(), entry.keys() - needed - {"source"}
    if missing or extra:
        what = f"lacks {sorted(missing)}" if missing else f"has {sorted(extra)}"
        raise ValueError(f"{name} {what}; keys are {sorted(needed)} and source")
    if not isinstance(entry["variant"], dict):
        raise ValueError(f"{name}: variant must be a mapping, got {entry['variant']!r}")
    for key in ("expected", "tolerance"):
        value = entry[key]
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not (is_number and math.isfinite(value)):
            raise ValueError(f"{name}: {key} must be a number, got {value!r}")
    if entry["tolerance"] <= 0:
        raise ValueError(f"{name}: tolerance must be positive")
    fits = ("mean",) if entry["quantity"] == VAL_LOSS else tuple(FITS)
    if entry["fit"] not in fits:
        raise ValueError(
            f"{name}: fit of {entry['quantity']!r} must be one of {', '.join(fits)}, "
            f"got {entry['fit']!r}"
        )
    if entry["quantity"] != VAL_LOSS:
        split_quantity(entry["quantity"])
    return Expectation(**entry)


def split_quantity(text: str) -> tuple[str, str]:
    """`ffn/up/kernel last` -> (`ffn/up/kernel`, `last`)."""
    name, _, layer = str(text).rpartition(" ")
    if layer not in LAYERS or not name:
        raise ValueError(
            f"quantity {text!r} must end in first or last, as in 'ffn/up/kernel last'"
        )
    return name, layer
