"""Numbers of a study: contrasts, matched versions, recoveries, and what they say."""

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from analysis.interaction.design import (
    METRIC,
    Contrast,
    Design,
    Remedy,
    difference,
    joined,
)
from analysis.interaction.matched import Curve, Matched, log_step_ratio, match_losses
from analysis.interaction.study import Cell, Study
from analysis.interaction.verdict import verdict
from analysis.paired import (
    Ratio,
    combine,
    one_minus,
    paired_ratio,
    seeds_for_power,
    sign_flip_p_value,
    smallest_effect,
    t_p_value,
)
from analysis.stats import NOT_KNOWN, Interval, t_interval

Values = Mapping[Cell, Mapping[int, float]]
NONE = Interval(NOT_KNOWN, NOT_KNOWN, NOT_KNOWN, NOT_KNOWN, NOT_KNOWN, 0)


@dataclass(frozen=True)
class Estimate:
    """A contrast under one rule.

    Attributes:
        contrast: what was compared.
        per_seed: seed -> its value.
        interval: mean with its Student-t interval.
        p_t, p_sign_flip: two-sided.
        seeds_for_80: seeds that would find an effect of this size with 80 % power.
        smallest: the effect that these seeds find with 80 % power.
        missing: cells without a completed run.
    """

    contrast: Contrast
    per_seed: dict[int, float]
    interval: Interval
    p_t: float
    p_sign_flip: float
    seeds_for_80: int | None
    smallest: float
    missing: tuple[str, ...] = ()

    @property
    def sign(self) -> int:
        """Of an interval that leaves out 0; 0 for any other."""
        if not self.interval.has_interval:
            return 0
        return (self.interval.low > 0) - (self.interval.high < 0)


def parts_of(contrast: Contrast) -> list[tuple[float, Cell]]:
    """Weights of the cells: later level minus earlier level, on either axis."""
    rows = [(-1.0, contrast.rows[0]), (1.0, contrast.rows[-1])]
    columns = [(-1.0, contrast.columns[0]), (1.0, contrast.columns[-1])]
    rows = rows if len(contrast.rows) == 2 else [(1.0, contrast.rows[0])]
    columns = columns if len(contrast.columns) == 2 else [(1.0, contrast.columns[0])]
    return [(a * b, (row, column)) for a, row in rows for b, column in columns]


def estimate(contrast: Contrast, values: Values) -> Estimate:
    """The contrast over the seeds that all its cells have."""
    parts = parts_of(contrast)
    missing = tuple(joined(cell) for _, cell in parts if not values.get(cell))
    per_seed = {} if missing else combine([(w, values[cell]) for w, cell in parts])
    return of_seeds(contrast, per_seed, missing)


def of_seeds(
    contrast: Contrast, per_seed: dict[int, float], missing: tuple[str, ...] = ()
) -> Estimate:
    """The same, of values that are already one per seed."""
    numbers = list(per_seed.values())
    interval = t_interval(numbers) if numbers else NONE
    return Estimate(
        contrast,
        per_seed,
        interval,
        t_p_value(numbers),
        sign_flip_p_value(numbers),
        seeds_for_power(interval.sd, interval.mean),
        smallest_effect(interval.sd, interval.n),
        missing,
    )


@dataclass(frozen=True)
class Primary:
    """The primary hypothesis under one rule, on every scale.

    Attributes:
        estimate: in the units of the metric, at the last step.
        gaps: of the second row to the first, per column.
        matched: at equal loss of the baselines; `matches` has the seeds.
        log_steps: of ln(steps to a loss that all four cells reach).
        gap_ratio: second gap over first.
        verdict, sentence: what may be said.
    """

    estimate: Estimate
    gaps: tuple[Estimate, Estimate]
    matched: Estimate
    matches: dict[int, Matched]
    log_steps: Estimate
    log_steps_reason: str
    gap_ratio: Ratio
    verdict: str
    sentence: str


def primary(study: Study, rule: str, of: Mapping[str, Curve]) -> Primary:
    """Everything about the primary hypothesis under one rule.

    Args:
        of: run_id -> curve of the metric.
    """
    contrast = study.design.primary
    values = study.values(rule)
    found = estimate(contrast, values)
    gaps = tuple(
        estimate(gap(contrast, place), values) for place in range(len(contrast.columns))
    )
    matches, logs, reason = {}, {}, ""
    for seed, four in cell_curves(study, rule, contrast, of).items():
        matches[seed] = match_losses(four, contrast.columns)
        ratio, why = log_step_ratio(four)
        reason = reason or why
        if not why:
            logs[seed] = ratio
    matched = of_seeds(contrast, {s: m.interaction for s, m in matches.items()})
    log_steps = of_seeds(contrast, logs)
    ratio = paired_ratio(gaps[1].per_seed, gaps[0].per_seed)
    status, sentence = verdict(found, matched, log_steps)
    return Primary(
        found, gaps, matched, matches, log_steps, reason, ratio, status, sentence
    )


def gap(contrast: Contrast, place: int) -> Contrast:
    """The simple effect of the rows in one column."""
    column = contrast.columns[place]
    name = f"{difference(contrast.rows)}, {column}"
    return Contrast(name, contrast.rows, (column,))


def cell_curves(
    study: Study, rule: str, contrast: Contrast, of: Mapping[str, Curve]
) -> dict[int, dict[tuple[int, int], Curve]]:
    """seed -> (row, column) as 0 or 1 -> curve, of seeds with all four."""
    runs = study.runs.get(rule, {})
    places = [(i, j) for i in (0, 1) for j in (0, 1)]
    of_cell = {
        (i, j): runs.get((contrast.rows[i], contrast.columns[j]), {}) for i, j in places
    }
    seeds = set.intersection(*(set(members) for members in of_cell.values()))
    return {
        seed: {place: of[of_cell[place][seed]] for place in places}
        for seed in sorted(seeds)
        if all(of_cell[place][seed] in of for place in places)
    }


@dataclass(frozen=True)
class Recovery:
    """How much of the trouble a remedy takes away.

    Attributes:
        of_gap: 1 - gap(remedy) / gap: 1 closes the whole gap to the baseline row.
        of_interaction: (gap - gap(remedy)) / interaction: 1 removes what the second
            column added.
        gap: of the remedy.
    """

    remedy: Remedy
    gap: Estimate
    of_gap: Ratio
    of_interaction: Ratio


def recovery(remedy: Remedy, design: Design, values: Values) -> Recovery:
    """Both kinds; the baseline is that row in the column of the remedy."""
    p = design.primary
    trouble = estimate(gap(p, 1), values)
    rows = (p.rows[0], remedy.row)
    name = f"{difference(rows)}, {remedy.column}"
    own = estimate(Contrast(name, rows, (remedy.column,)), values)
    whole = estimate(p, values)
    mended = combine([(1, trouble.per_seed), (-1, own.per_seed)])
    return Recovery(
        remedy,
        own,
        one_minus(paired_ratio(own.per_seed, trouble.per_seed)),
        paired_ratio(mended, whole.per_seed),
    )


def probe_numbers(study: Study, contrast: Contrast) -> dict[str, float]:
    """run_id -> a probed quantity, reduced over places and at a step.

    `at` is `last`, `mean` (over the probed steps) or a step.
    """
    rows = study.table.probes.filter(quantity=contrast.quantity)
    places = pl.col("values").list.drop_nulls()
    reduced = {
        "mean": places.list.mean(),
        "max": places.list.max(),
        "min": places.list.min(),
        "first": places.list.first(),
        "last": places.list.last(),
    }[contrast.reduce]
    rows = rows.with_columns(number=reduced).drop_nulls("number").sort("step")
    if contrast.at == "mean":
        rows = rows.group_by("run_id").agg(pl.col("number").mean())
    elif contrast.at == "last":
        rows = rows.unique("run_id", keep="last", maintain_order=True)
    else:
        rows = rows.filter(pl.col("step") == int(contrast.at))
    return dict(rows.select("run_id", "number").rows())


def numbers_for(study: Study, contrast: Contrast) -> dict[str, float]:
    """run_id -> what the contrast compares: the metric, or its own quantity."""
    if contrast.quantity in (None, METRIC, study.design.metric):
        return study.finals
    return probe_numbers(study, contrast)
