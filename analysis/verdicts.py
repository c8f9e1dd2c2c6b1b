"""Compares what an experiment expected with what its runs measured."""

import math
from dataclasses import dataclass, replace

import polars as pl

from analysis.decide import NOT_CONFIRMED, NOT_EVALUATED, verdict
from analysis.expectations import Expectation, expected_entries, parse
from analysis.load import Runs
from analysis.losses import ENDS
from analysis.measure import is_finite, measure
from analysis.variants import is_depth_family


@dataclass(frozen=True)
class Outcome:
    """An expectation, the runs it met (`label`), what they gave, and the verdict.

    `seeds_needed` is the number of seeds whose interval would be as narrow as the
    tolerance; None if unknown.
    """

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
    seeds_needed: int | None = None
    reason: str = ""


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
    spelled = ", ".join(f"{key}={value}" for key, value in expectation.variant.items())
    base = Outcome(
        id=expectation.id,
        label=spelled or "all runs",
        quantity=_said(expectation),
        fit=expectation.fit,
        expected=expectation.expected,
        tolerance=expectation.tolerance,
        source=expectation.source,
    )
    runs = _matching(table.runs, expectation.variant)
    # A depth law is not asked of runs that train, nor a loss of runs that do not.
    is_end = expectation.quantity in ENDS
    of_kind = [is_depth_family(f) != is_end for f in runs["family"]]
    runs = runs.filter(pl.Series(of_kind, dtype=pl.Boolean))
    if runs.is_empty():
        return [replace(base, reason="no such runs")]
    return [
        _outcome(replace(base, label=variant), expectation, members, table)
        for (_, variant), members in runs.group_by(
            "family", "variant", maintain_order=True
        )
    ]


def _outcome(base: Outcome, expectation: Expectation, runs, table: Runs) -> Outcome:
    try:
        measured = measure(expectation, runs, table)
    except ValueError as error:
        return replace(base, reason=str(error))
    if not is_finite(measured):
        return replace(
            base, measured=measured.mean, verdict=NOT_CONFIRMED, reason="does not grow"
        )
    found = verdict(measured, base.expected, base.tolerance)
    return replace(
        base,
        measured=measured.mean,
        half_width=measured.half_width,
        n=measured.n,
        verdict=found.status,
        seeds_needed=found.seeds_needed,
    )


def _said(expectation: Expectation) -> str:
    """The quantity with what narrows it: `ffn/up/kernel all, L=96, from block 2`."""
    parts = [expectation.quantity]
    if expectation.against is not None:
        parts.append(f"against {expectation.against}")
    if expectation.depth is not None:
        parts.append(f"L={expectation.depth}")
    if expectation.depths is not None:
        parts.append(f"L in {', '.join(map(str, expectation.depths))}")
    if expectation.from_block > 1:
        parts.append(f"from block {expectation.from_block}")
    return ", ".join(parts)


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


def _faulty(entry: dict, error: ValueError) -> Outcome:
    blank = {"expected": math.nan, "tolerance": math.nan, "label": ""}
    texts = {key: str(entry.get(key, "")) for key in ("quantity", "fit", "source")}
    return Outcome(id=str(entry.get("id", "?")), reason=str(error), **blank, **texts)
