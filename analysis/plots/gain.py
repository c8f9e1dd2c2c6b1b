"""Composite gain of the stream mixing over depth, forward and backward."""

import math

import numpy as np
import polars as pl
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from analysis.gain import DIRECTIONS, GAIN
from analysis.plots import sites, style

TITLES = {
    "forward": "Forward: row sums of $H_l \\ldots H_1$",
    "backward": "Backward: column sums of $H_L \\ldots H_l$",
}
LEAST = math.log(1.25)  # half the height of the axis, at least, around a gain of 1


def gain_figure(runs: pl.DataFrame, probes: pl.DataFrame) -> Figure:
    """Largest (solid) and smallest (dotted) absolute sum of the product of the mixing
    matrices up to a sub-layer, and from it on; geometric mean over seeds, 95 % t band
    around the largest.

    Args:
        runs, probes: frames of one family; `probes` with the rows of
            `analysis.gain.gain_rows`.

    Raises:
        ValueError: no run recorded mixing matrices.
    """
    looks = style.looks(list(runs["variant"].unique(maintain_order=True)))
    figure = style.new_figure(10.4, 4.4)
    panels = figure.subplots(1, 2, sharey=True)
    handles, reach = {}, LEAST
    for axes, direction in zip(panels, DIRECTIONS, strict=True):
        for measure in ("max", "min"):
            rows = logs(sites.site_rows(runs, probes, f"{GAIN}/{direction}/{measure}"))
            for variant in dict.fromkeys(v for v in looks if v in set(rows["variant"])):
                look = looks[variant]
                means = sites.intervals(rows, variant)
                reach = max(reach, *(abs(m.mean) for m in means))
                thin = dict(has_band=False, ls=":", lw=1.0, marker="")
                drawn = {} if measure == "max" else thin
                sites.draw(axes, means, look, np.exp, **drawn)
                handles[variant] = Line2D(
                    [],
                    [],
                    color=look.colour,
                    marker=look.marker,
                    ls=look.dashes,
                    ms=4.5,
                    label=style.plain(style.shorten(variant, 40)),
                )
        axes.axhline(1, color=style.INK, lw=0.7, zorder=0)
        axes.set_yscale("log")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        style.tidy(
            axes,
            x="sub-layer l (1 is next to the input)",
            y="composite gain" if axes is panels[0] else "",
            title=TITLES[direction],
        )
    _limits(panels[0], 1.15 * reach)
    panels[1].legend(
        handles=list(handles.values()),
        loc="upper left",
        bbox_to_anchor=(1.02, 1),
        frameon=False,
        fontsize=8,
        borderaxespad=0,
    )
    text = sites.caption_text(rows).replace("Mean", "Geometric mean", 1)
    style.caption(
        figure,
        "Largest (with marks) and smallest (dotted) absolute sum over the streams; 1 keeps "
        "the size. Matrices are means over tokens, as in figure 8 of arXiv 2512.24880. "
        + text,
    )
    return figure


def logs(rows: pl.DataFrame) -> pl.DataFrame:
    """The same rows with logarithms, without runs that have a sum of zero."""
    rows = rows.filter(pl.col("values").list.min() > 0)
    return rows.with_columns(pl.col("values").list.eval(pl.element().log()))


def _limits(axes, reach: float) -> None:
    """The same factor above and below 1, and ticks that fit in it."""
    axes.set_ylim(math.exp(-reach), math.exp(reach))
    if reach < math.log(10):
        ticks = [0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9, 1, 1.1, 1.25, 1.5, 2, 3, 5, 10]
        near = [t for t in ticks if abs(math.log(t)) <= reach]
        if reach > math.log(2):
            near = [t for t in near if t not in (0.7, 0.8, 0.9, 1.1, 1.25, 1.5)]
        axes.set_yticks(near)
    else:
        axes.yaxis.set_major_locator(LogLocator(numticks=9))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
