"""The panel beside the loss curves: where every variant ended."""

from collections.abc import Sequence

import polars as pl
from matplotlib.axes import Axes

from analysis.losses import VAL_LOSS, best_first, first_measured
from analysis.plots import style
from analysis.states import states_text
from analysis.stats import Interval, t_interval
from analysis.text import with_interval


def draw_finals(
    axes: Axes,
    runs: pl.DataFrame,
    metrics: pl.DataFrame,
    variants: Sequence[str],
    looks: dict[str, style.Look],
    measures: Sequence[str] = (VAL_LOSS, "loss"),
) -> str:
    """Draws one row per variant, best on top, with its 95 % t interval over seeds.

    The row names the variant and carries its mark, so the panel is also a legend. A
    variant without a completed run has a cross at the edge and says why.

    Returns:
        Which of `measures` it is: the first that a run has.
    """
    measure, losses = first_measured(runs, metrics, measures)
    found = {}
    for variant in variants:
        values = losses.filter(pl.col("variant") == variant)["value"]
        if len(values):
            found[variant] = t_interval(values.to_list())
    order = best_first({v: interval.mean for v, interval in found.items()}, measure)
    order += [v for v in variants if v not in found]
    labels = []
    for row, variant in enumerate(order):
        look, members = looks[variant], runs.filter(pl.col("variant") == variant)
        if variant in found:
            interval = found[variant]
            axes.errorbar(
                interval.mean,
                row,
                xerr=[interval.half_width] if interval.has_interval else None,
                color=look.colour,
                marker=look.marker,
                ms=7,
                mec="white",
                mew=0.7,
                capsize=3,
                lw=1.6,
            )
            value = with_interval(interval.mean, interval.half_width)
            others = states_text(members, without=("completed",))
            tail = f"; {others}" if others else ""
            labels.append(f"{variant}\n{value}, n={interval.n}{tail}")
        else:
            axes.plot(
                0.03,
                row,
                marker="x",
                color=look.colour,
                ms=7,
                mew=2,
                transform=axes.get_yaxis_transform(),
            )
            labels.append(f"{variant}\n{states_text(members)}")
    axes.set_ylim(len(order) - 0.4, -0.6)
    axes.yaxis.tick_right()
    axes.set_yticks(range(len(order)), [style.plain(text) for text in labels])
    axes.tick_params(axis="y", length=0)
    if found:
        _set_final_window(axes, list(found.values()))
    else:
        axes.set_xticks([])
    return measure


def _set_final_window(axes, intervals: list[Interval]) -> None:
    """Means and the bars of three or more seeds; a longer bar runs out of the panel."""
    bars = [i for i in intervals if i.n >= style.BAND_SEEDS]
    low = min([i.mean for i in intervals] + [i.low for i in bars])
    high = max([i.mean for i in intervals] + [i.high for i in bars])
    pad = 0.12 * (high - low) or 0.05
    axes.set_xlim(low - pad, high + pad)
