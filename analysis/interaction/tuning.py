"""Learning rates chosen from tuning runs, with the whole grid."""

import math
from dataclasses import dataclass

from analysis.interaction.design import Design, joined

Cell = tuple[str, str]


@dataclass(frozen=True)
class Point:
    """A cell at one rate: the mean over its tuning seeds, NaN where one did not end."""

    row: str
    column: str
    rate: float
    value: float
    n: int
    states: str


@dataclass(frozen=True)
class Tuning:
    """The grid, and what it chose.

    Attributes:
        points: by cell and rate, ascending.
        own: cell -> the rate with the lowest mean of the metric.
        shared: column -> that of the baseline row, to be used in every row.
        at_edge: cells whose own rate is the smallest or largest that was tried; a
            neighbour that diverged counts as tried.
        seeds: of the tuning runs.
    """

    points: tuple[Point, ...]
    own: dict[Cell, float]
    shared: dict[str, float]
    at_edge: tuple[Cell, ...]
    seeds: tuple[int, ...]

    def of(self, cell: Cell) -> list[Point]:
        return [p for p in self.points if (p.row, p.column) == cell]


def tune(runs: list[dict], finals: dict[str, float], design: Design) -> Tuning:
    """Chooses a rate per cell from rows with run_id, cell, rate, seed, state.

    A rate counts only where all its runs completed, so that a lucky seed does not
    choose a rate at which others diverge.
    """
    grid: dict[tuple, list[dict]] = {}
    for run in runs:
        if run["rate"] is not None:
            grid.setdefault((run["cell"], run["rate"]), []).append(run)
    points = []
    for row in design.rows.labels:
        for column in design.columns.labels:
            rates = sorted(rate for cell, rate in grid if cell == (row, column))
            for rate in rates:
                points.append(
                    _point(row, column, rate, grid[(row, column), rate], finals)
                )
    own, at_edge = {}, []
    for cell in dict.fromkeys((p.row, p.column) for p in points):
        tried = [p for p in points if (p.row, p.column) == cell]
        ended = [p for p in tried if math.isfinite(p.value)]
        if not ended:
            continue
        best = min(ended, key=lambda p: p.value)
        own[cell] = best.rate
        if best in (tried[0], tried[-1]):
            at_edge.append(cell)
    baseline = design.primary.rows[0]
    shared = {column: rate for (row, column), rate in own.items() if row == baseline}
    seeds = tuple(sorted({run["seed"] for run in runs}))
    return Tuning(tuple(points), own, shared, tuple(at_edge), seeds)


def mistuned(
    own: dict[Cell, dict[int, str]],
    shared: dict[Cell, dict[int, str]],
    finals: dict[str, float],
) -> list[str]:
    """A line for each cell that ends better at the baseline's rates than at its own best.

    Then its own are not the best: what was tuned was not all that differs. Only where it
    is so in every one of at least two seeds.

    Args:
        own, shared: cell -> seed -> run.
        finals: run -> its final metric, the lower the better.
    """
    lines = []
    for cell in [cell for cell in own if cell in shared]:
        seeds = sorted(own[cell].keys() & shared[cell].keys())
        pairs = [(finals[own[cell][s]], finals[shared[cell][s]]) for s in seeds]
        if len(pairs) > 1 and all(a > b for a, b in pairs):
            mine, theirs = (sum(x) / len(pairs) for x in zip(*pairs, strict=True))
            lines.append(
                f"{joined(cell)} ends at {mine:.3g} at its own rates and at {theirs:.3g} "
                f"at those of the baseline row ({len(pairs)} seeds): its own are not the "
                "best, tune it again before reading the interaction under own rates"
            )
    return lines


def _point(row: str, column: str, rate: float, runs: list[dict], finals) -> Point:
    values = [finals.get(run["run_id"], math.nan) for run in runs]
    states = [run["state"] for run in runs if run["state"] != "completed"]
    return Point(
        row,
        column,
        rate,
        sum(values) / len(values),
        len(values),
        ", ".join(dict.fromkeys(states)),
    )
