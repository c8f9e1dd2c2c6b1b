"""What the figures of an interaction study share: looks of its two factors."""

import math

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.interaction.design import AS_RUN, OWN, SHARED
from analysis.interaction.study import Cell, Study
from analysis.plots import style

RULES = {OWN: "own rates", SHARED: "shared rates", AS_RUN: "rates as run"}


def row_looks(study: Study) -> dict[str, style.Look]:
    return style.looks(study.design.rows.labels)


def column_looks(study: Study) -> dict[str, style.Look]:
    """Other colours than those of the first rows, so that none means two things."""
    labels = study.design.columns.labels
    places = dict(zip(labels, style.looks(range(3, 3 + len(labels))), strict=True))
    by_place = style.looks(range(3 + len(labels)))
    return {label: by_place[place] for label, place in places.items()}


def rows_present(study: Study) -> list[str]:
    present = {row for row, _ in study.cells}
    return [row for row in study.design.rows.labels if row in present]


def columns_present(study: Study) -> list[str]:
    present = {column for _, column in study.cells}
    return [column for column in study.design.columns.labels if column in present]


def beside(axes: Axes, **keywords) -> None:
    """The legend, to the right of the axes."""
    axes.legend(
        loc="upper left",
        bbox_to_anchor=(1.02, 1),
        frameon=False,
        fontsize=8.5,
        borderaxespad=0,
        handlelength=2.6,
        **keywords,
    )


def grid(n: int, per_row: int, width: float, height: float, **keywords):
    """A figure of n panels of that size [inch], the spare ones hidden.

    Returns:
        The figure, and the panels that are used.
    """
    columns = min(n, per_row)
    rows = math.ceil(n / columns)
    figure = style.new_figure(
        max(style.ONE_COLUMN, 1.2 + width * columns), 1.3 + height * rows
    )
    panels = figure.subplots(rows, columns, squeeze=False, **keywords)
    for axes in list(panels.flat)[n:]:
        axes.set_visible(False)
    return figure, list(panels.flat)[:n]


def head(figure: Figure, text: str) -> None:
    figure.suptitle(text, fontsize=11, color=style.INK, x=0.012, ha="left")


def panel_title(axes: Axes, text: str) -> None:
    name = style.plain(style.shorten(text, 30))
    axes.set_title(name, loc="left", fontsize=8.5, color=style.INK, pad=4)
    axes.tick_params(labelsize=7.5, colors=style.INK)


def probed(study: Study, rule: str, quantity: str) -> dict[Cell, pl.DataFrame]:
    """(row, column) -> rows (seed, step, values) of its completed runs, with NaN for
    what was not measured; cells without any are left out."""
    rows = study.table.probes.filter(quantity=quantity).select(
        "run_id", "step", "values"
    )
    found = {}
    for cell in study.cells:
        members = study.runs.get(rule, {}).get(cell, {})
        own = pl.DataFrame(
            {"run_id": list(members.values()), "seed": list(members)},
            schema={"run_id": pl.String, "seed": pl.Int64},
        )
        joined = own.join(rows, on="run_id").sort("step", "seed")
        if not joined.is_empty():
            found[cell] = joined
    return found


def mean_by_step(rows: pl.DataFrame) -> tuple[list[int], np.ndarray]:
    """Steps, and [steps, places] the mean over seeds without what is not known."""
    steps, means = [], []
    for (step,), own in rows.group_by("step", maintain_order=True):
        lists = own["values"].to_list()
        usual = [v for v in lists if len(v) == len(lists[0])]
        block = np.array(usual, float)
        known = np.isfinite(block)
        total = np.where(known, block, 0).sum(axis=0)
        count = known.sum(axis=0)
        steps.append(step)
        means.append(np.where(count > 0, total / np.maximum(count, 1), np.nan))
    width = max(map(len, means))
    return steps, np.array([m for m in means if len(m) == width], float)
