"""The tuning grid: the metric against the learning rate in every cell."""

import math

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, NullLocator

from analysis.interaction.study import Study
from analysis.plots import cells, style


def rates_figure(study: Study) -> Figure:
    """One panel per column, one line per row; a ring marks the rate that was chosen
    for the cell, a cross at the upper edge a rate at which a run did not end.

    Raises:
        ValueError: no tuning runs.
    """
    if study.tuning is None:
        raise ValueError("no tuning runs")
    points, looks = study.tuning.points, cells.row_looks(study)
    columns = list(dict.fromkeys(p.column for p in points))
    rows = list(dict.fromkeys(p.row for p in points))
    figure, panels = cells.grid(len(columns), 3, 2.7, 2.9, sharey=True)
    for axes, column in zip(panels, columns, strict=True):
        rates = sorted({p.rate for p in points if p.column == column})
        axes.set_xscale("log")
        for place, row in enumerate(rows):
            own = study.tuning.of((row, column))
            _draw(axes, own, looks[row], study.tuning.own.get((row, column)))
            _draw_lost(axes, own, looks[row], place)
        style.tidy(axes, x=study.design.rate.rsplit(".", 1)[-1], y="")
        cells.panel_title(axes, column)
        axes.xaxis.set_major_locator(FixedLocator(rates[:: math.ceil(len(rates) / 6)]))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
        axes.margins(x=0.1)
    panels[0].set_ylabel(f"final {study.design.metric}", fontsize=10, color=style.INK)
    handles = [
        Line2D(
            [],
            [],
            color=looks[row].colour,
            marker=looks[row].marker,
            ls=looks[row].dashes,
            label=style.plain(row),
        )
        for row in rows
    ]
    ring = {"marker": "o", "ls": "none", "ms": 11, "mfc": "none", "mec": style.INK}
    handles.append(Line2D([], [], label="chosen", **ring))
    cells.beside(panels[-1], handles=handles)
    cells.head(figure, "Learning rates")
    seeds = ", ".join(map(str, study.tuning.seeds))
    style.caption(
        figure,
        f"Tuning runs alone (seed {seeds}); the means of the study use other seeds. "
        "Ring: the best rate of the cell. Cross: some run at this rate did not end.",
    )
    return figure


def _draw(axes, points: list, look, best: float | None) -> None:
    ended = [p for p in points if math.isfinite(p.value)]
    axes.plot(
        [p.rate for p in ended],
        [p.value for p in ended],
        color=look.colour,
        marker=look.marker,
        ls=look.dashes,
        ms=5,
        mec="white",
        mew=0.6,
        lw=1.4,
        zorder=3,
    )
    for p in ended:
        if p.rate == best:
            axes.plot(p.rate, p.value, "o", ms=11, mfc="none", mec=look.colour, mew=1.1)


def _draw_lost(axes, points: list, look, place: int) -> None:
    for p in points:
        if not math.isfinite(p.value):
            axes.plot(
                p.rate,
                0.98 - 0.05 * place,
                marker="x",
                color=look.colour,
                ms=6,
                mew=1.6,
                transform=axes.get_xaxis_transform(),
                gid="lost",
            )
