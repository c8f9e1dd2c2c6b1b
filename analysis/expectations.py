"""Compares what an experiment expected (`tags.expected`) with what was measured."""

import json
import math
from dataclasses import asdict, dataclass, replace

import numpy as np
import polars as pl

from analysis.depths import LAYERS, depth_sample, probe_values
from analysis.laws import slope_interval
from analysis.load import Runs
from analysis.losses import final_losses
from analysis.stats import Interval, t_interval
from analysis.variants import is_depth_family

CONFIRMED = "confirmed"
NOT_CONFIRMED = "not confirmed"
TOO_FEW = "too few seeds"
NOT_EVALUATED = "not evaluated"

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


@dataclass(frozen=True)
class Outcome:
    """An expectation, the runs it met (`label`), what they gave, and the verdict."""

    id: str
    label: str
    quantity: str
    fit: str
    expected: float
    tolerance: float
    source: str
    measured: float = math.nan
    half_width: float = math.nan
    n: int = 0
    verdict: str = NOT_EVALUATED
    reason: str = ""


def verdict(measured: Interval, expected: float, tolerance: float) -> str:
    """Confirmed, not confirmed, or too few seeds to say.

    An interval wider than the tolerance on either side of the mean cannot confirm;
    it can still refute, where it does not touch expected +- tolerance at all.
    """
    is_wide = not measured.half_width <= tolerance  # also where there is none (NaN)
    misses = abs(measured.mean - expected) > tolerance + measured.half_width
    if is_wide:
        return NOT_CONFIRMED if misses else TOO_FEW
    is_near = abs(measured.mean - expected) <= tolerance
    return CONFIRMED if is_near else NOT_CONFIRMED


def expected_entries(runs: pl.DataFrame) -> list[dict]:
    """All different entries of `tags.expected` over the runs, in order of appearance.

    Raises:
        ValueError: `tags.expected` is not a list of mappings.
    """
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
        _split_quantity(entry["quantity"])
    return Expectation(**entry)


def evaluate(table: Runs) -> list[Outcome]:
    """One outcome per entry and matching variant; a faulty entry says what is wrong."""
    outcomes = []
    try:
        entries = expected_entries(table.runs)
    except ValueError as error:
        return [_faulty({"id": "tags.expected"}, error)]
    for entry in entries:
        try:
            outcomes += _evaluate(parse(entry), table)
        except ValueError as error:
            outcomes.append(_faulty(entry, error))
    return outcomes


def _evaluate(expectation: Expectation, table: Runs) -> list[Outcome]:
    blank = asdict(expectation)
    wanted = blank.pop("variant")
    spelled = ", ".join(f"{key}={value}" for key, value in wanted.items())
    base = Outcome(label=spelled or "all runs", **blank)
    runs = _matching(table.runs, wanted)
    # A depth law is not asked of runs that train, nor a loss of runs that do not.
    is_loss = expectation.quantity == VAL_LOSS
    of_kind = [is_depth_family(f) != is_loss for f in runs["family"]]
    runs = runs.filter(pl.Series(of_kind, dtype=pl.Boolean))
    if runs.is_empty():
        return [replace(base, reason="no such runs")]
    outcomes = []
    for family, variant in (
        runs.select("family", "variant").unique(maintain_order=True).rows()
    ):
        members = runs.filter(
            (pl.col("family") == family) & (pl.col("variant") == variant)
        )
        outcome = replace(base, label=variant)
        try:
            measured = _measure(expectation, members, table)
        except ValueError as error:
            outcomes.append(replace(outcome, reason=str(error)))
            continue
        outcomes.append(
            replace(
                outcome,
                measured=measured.mean,
                half_width=measured.half_width,
                n=measured.n,
                verdict=verdict(measured, base.expected, base.tolerance),
            )
        )
    return outcomes


def _matching(runs: pl.DataFrame, wanted: dict) -> pl.DataFrame:
    for key, value in wanted.items():
        columns = [c for c in (f"choice.{key}", f"config.{key}") if c in runs.columns]
        if not columns:
            raise ValueError(f"variant key {key!r} is no choice and no config key")
        column = pl.col(columns[0])
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            same = column.cast(pl.Float64, strict=False) == float(value)
        elif value is None:
            same = column.is_null()
        else:
            text = str(value).lower() if isinstance(value, bool) else str(value)
            same = column.cast(pl.String) == text
        runs = runs.filter(same)
    return runs


def _measure(expectation: Expectation, runs: pl.DataFrame, table: Runs) -> Interval:
    if expectation.quantity == VAL_LOSS:
        losses = final_losses(runs, table.metrics, VAL_LOSS)
        if losses.is_empty():
            raise ValueError("no completed run with a validation loss")
        return t_interval(losses["value"].to_list())
    quantity, layer = _split_quantity(expectation.quantity)
    names = set(table.probes["quantity"].unique())
    if quantity not in names and f"grad_norm/{quantity}" in names:
        quantity = f"grad_norm/{quantity}"
    sample = depth_sample(probe_values(runs, table.probes, quantity, layer))
    if not sample.points:
        raise ValueError(f"no completed run recorded {quantity}")
    if len(sample.depths) < 2:
        raise ValueError(f"one depth only: {sample.depths[0]}")
    if not sample.by_seed:
        raise ValueError("no seed reached every depth")
    x = FITS[expectation.fit](np.asarray(sample.depths, float))
    return slope_interval(x, sample.by_seed)


def _split_quantity(text: str) -> tuple[str, str]:
    name, _, layer = str(text).rpartition(" ")
    if layer not in LAYERS or not name:
        raise ValueError(
            f"quantity {text!r} must end in first or last, as in 'ffn/up/kernel last'"
        )
    return name, layer


def _faulty(entry: dict, error: ValueError) -> Outcome:
    return Outcome(
        id=str(entry.get("id", "?")),
        label="",
        quantity=str(entry.get("quantity", "")),
        fit=str(entry.get("fit", "")),
        expected=math.nan,
        tolerance=math.nan,
        source=str(entry.get("source", "")),
        reason=str(error),
    )
