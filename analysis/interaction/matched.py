"""Gaps at equal progress: at one loss of the baselines, and in steps to one loss.

A gap in nats changes along a training curve, and a better optimizer is further along
at a fixed step: an interaction of final losses may be no more than that.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl


@dataclass(frozen=True)
class Curve:
    """Evaluations of one run: steps ascending, and the metric after each."""

    steps: np.ndarray
    values: np.ndarray

    def at(self, step: float) -> float:
        """Between two evaluations, the straight line."""
        return float(np.interp(step, self.steps, self.values))

    def reaches(self, value: float) -> float:
        """The first step at which the curve is at `value` or below; NaN if never."""
        below = np.flatnonzero(self.values <= value)
        if below.size == 0:
            return math.nan
        i = int(below[0])
        if i == 0:
            return float(self.steps[0])
        (s0, s1), (v0, v1) = self.steps[i - 1 : i + 1], self.values[i - 1 : i + 1]
        return float(s0 + (s1 - s0) * (v0 - value) / (v0 - v1))

    @property
    def final(self) -> float:
        return float(self.values[-1])


def curves(metrics: pl.DataFrame, metric: str) -> dict[str, Curve]:
    """run_id -> curve, of all runs that were evaluated."""
    rows = metrics.drop_nulls(metric).sort("run_id", "step")
    return {
        run_id: Curve(
            own["step"].to_numpy().astype(float), own[metric].to_numpy().astype(float)
        )
        for (run_id,), own in rows.group_by("run_id", maintain_order=True)
    }


@dataclass(frozen=True)
class Matched:
    """Of one seed.

    Attributes:
        target: the final value of the baseline row that is behind.
        rewound: the column that is ahead, "" if the two are equal.
        step: where the baseline row of that column first reached the target.
        gaps: gap to the baseline row per column at its matched step.
        interaction: second gap minus first.
    """

    target: float
    rewound: str
    step: float
    gaps: tuple[float, float]

    @property
    def interaction(self) -> float:
        return self.gaps[1] - self.gaps[0]


def match_losses(
    curves_of: Mapping[tuple[int, int], Curve], names: tuple[str, str]
) -> Matched:
    """Rewinds the column whose baseline row ends lower to the loss at which the other
    baseline row ended; the gap there against the final gap of the other.

    Args:
        curves_of: (row, column) -> curve, rows and columns 0 (baseline) and 1.
        names: of the columns.
    """
    finals = [curves_of[0, column].final for column in (0, 1)]
    target, gaps, rewound, step = max(finals), [], "", math.nan
    for column in (0, 1):
        baseline, other = curves_of[0, column], curves_of[1, column]
        if finals[column] < target:
            rewound, step = names[column], baseline.reaches(target)
            gaps.append(other.at(step) - target)
        else:
            gaps.append(other.final - baseline.final)
    return Matched(target, rewound, step, tuple(gaps))


def log_step_ratio(curves_of: Mapping[tuple[int, int], Curve]) -> tuple[float, str]:
    """ln(t11 / t01) - ln(t10 / t00) with t the steps to the loss that all four reach.

    Returns:
        The number, and why there is none (NaN) or "". The loss is the highest of the
        four final ones; a cell that starts at or below it has no time to it.
    """
    target = max(curve.final for curve in curves_of.values())
    steps = {cell: curve.reaches(target) for cell, curve in curves_of.items()}
    if min(steps.values()) <= 0:
        return math.nan, "a run never left its first loss: no time to it"
    logs = {cell: math.log(step) for cell, step in steps.items()}
    return (logs[1, 1] - logs[0, 1]) - (logs[1, 0] - logs[0, 0]), ""
