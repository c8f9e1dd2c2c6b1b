"""The means of the cells: parallel lines are no interaction."""

import numpy as np
from matplotlib.figure import Figure

from analysis.interaction.design import joined
from analysis.interaction.study import Study
from analysis.plots import cells, style
from analysis.stats import t_interval


def interaction_figure(study: Study, rows: tuple[str, ...] = ()) -> Figure:
    """Mean of the final metric per cell with its 95 % t interval, one line per row
    over the columns, one panel per learning-rate rule; dots are seeds.

    Args:
        rows: which rows to draw; all if none are given.

    Raises:
        ValueError: no measuring run completed.
    """
    if not study.rules:
        raise ValueError("no measuring run completed")
    looks, columns = cells.row_looks(study), cells.columns_present(study)
    shown = [row for row in cells.rows_present(study) if not rows or row in rows]
    width = max(2.6, 0.9 * len(columns) + 1.0)
    figure, panels = cells.grid(len(study.rules), 3, width, 3.0, sharey=True)
    for axes, rule in zip(panels, study.rules, strict=True):
        values = study.values(rule)
        for place, row in enumerate(shown):
            _draw(axes, values, row, columns, looks[row], _offset(place, len(shown)))
        axes.set_xticks(range(len(columns)), [style.plain(c) for c in columns])
        axes.set_xlim(-0.4, len(columns) - 0.6)
        style.tidy(axes, x=study.design.columns.name, y="")
        cells.panel_title(axes, cells.RULES.get(rule, rule))
    panels[0].set_ylabel(f"final {study.design.metric}", fontsize=10, color=style.INK)
    drawn = {}  # a row may be in one of the panels only
    for axes in panels:
        handles, labels = axes.get_legend_handles_labels()
        drawn = dict(zip(labels, handles, strict=True)) | drawn
    order = [style.plain(row) for row in shown if style.plain(row) in drawn]
    cells.beside(panels[-1], handles=[drawn[label] for label in order])
    a, b = study.design.rows.name, study.design.columns.name
    cells.head(figure, joined((a, b)))
    style.caption(
        figure,
        "Mean over seeds with the 95 % Student-t interval; small dots: seeds. Lines "
        "that are not parallel are an interaction. Intervals of means contain what a "
        "seed does to all cells; the paired contrasts do not.",
    )
    return figure


def _offset(place: int, n: int) -> float:
    """Side by side, so that intervals do not hide each other."""
    return 0.0 if n == 1 else 0.28 * (place / (n - 1) - 0.5)


def _draw(axes, values: dict, row: str, columns: list[str], look, offset) -> None:
    x, means, halves = [], [], []
    for place, column in enumerate(columns):
        seeds = list(values.get((row, column), {}).values())
        if not seeds:
            continue
        interval = t_interval(seeds)
        x.append(place + offset)
        means.append(interval.mean)
        halves.append(interval.half_width)
        axes.plot(
            np.full(len(seeds), place + offset + 0.035),
            seeds,
            ".",
            color=look.colour,
            ms=3,
            alpha=0.5,
            zorder=1,
        )
    if x:
        axes.errorbar(
            x,
            means,
            yerr=np.nan_to_num(halves),
            color=look.colour,
            marker=look.marker,
            ls=look.dashes,
            ms=5.5,
            mec="white",
            mew=0.6,
            lw=1.4,
            elinewidth=1.3,
            label=style.plain(row),
            zorder=3,
        )
