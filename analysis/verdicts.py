"""Compares what an experiment expected with what its runs measured."""

import math
from dataclasses import asdict, dataclass, replace

import numpy as np
import polars as pl

from analysis.depths import depth_sample, probe_values
from analysis.expectations import (
    FITS,
    VAL_LOSS,
    Expectation,
    expected_entries,
    parse,
    split_quantity,
)
from analysis.laws import slope_interval
from analysis.load import Runs
from analysis.losses import final_losses
from analysis.stats import Interval, t_interval
from analysis.variants import is_depth_family

CONFIRMED = "confirmed"
NOT_CONFIRMED = "not confirmed"
TOO_FEW = "too few seeds"
NOT_EVALUATED = "not evaluated"


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
    quantity, layer = split_quantity(expectation.quantity)
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
