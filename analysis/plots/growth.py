"""Mean square of the residual stream against depth, with theory and Lemma 2."""

import numpy as np
import polars as pl
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, NullLocator

from analysis.depths import STREAM, depth_sample, probe_values
from analysis.plots import style
from analysis.plots.window import cut_axis, window_of
from analysis.stats import t_interval


def growth_figure(runs: pl.DataFrame, probes: pl.DataFrame, title: str = "") -> Figure:
    """s_L^2 after the last block: mean over seeds with its 95 % t interval, the line
    s0^2 + v L at the measured s0^2 and v where the stream grows, and the band of Lemma
    2 of arXiv 2002.04745 for Pre-LN, s0^2 (1 + L/2) to s0^2 (1 + 3 L/2).

    Args:
        runs, probes: frames of one depth family.

    Raises:
        ValueError: no completed run recorded the stream.
    """
    values = probe_values(runs, probes, STREAM)
    variants = list(values["variant"].unique(maintain_order=True))
    if not variants:
        raise ValueError(f"no completed run recorded {STREAM}")
    looks = style.looks(list(runs["variant"].unique(maintain_order=True)))
    s0 = _mean_of(runs, probes, "input_mean_square") or 1.0
    figure = style.new_figure(
        style.TWO_COLUMNS, max(4.2, 1.2 + 0.17 * (len(variants) + 2))
    )
    axes = figure.subplots()
    depths = np.array(sorted(values["n_layers"].unique()), float)
    span = np.geomspace(depths[0], depths[-1], 100)
    axes.fill_between(
        span,
        s0 * (1 + span / 2),
        s0 * (1 + 1.5 * span),
        color=style.GRID,
        lw=0,
        zorder=0,
    )
    window = window_of(dict(values.group_by("variant").agg("value").rows()))
    handles = []
    for variant in variants:
        look = looks[variant]
        sample = depth_sample(values.filter(variant=variant))
        grid = sorted({depth for depth, _, _ in sample.points})
        means = [t_interval(sample.at(depth)) for depth in grid]
        # Of a mean beyond the axis the bar would cross it from end to end.
        is_in = [window.limits[0] <= m.mean <= window.limits[1] for m in means]
        axes.errorbar(
            grid,
            [m.mean for m in means],
            yerr=np.where(is_in, np.nan_to_num([m.half_width for m in means]), 0),
            color=look.colour,
            marker=look.marker,
            ls=look.dashes,
            ms=5,
            mec="white",
            mew=0.6,
            lw=1.2,
            elinewidth=1.2,
            zorder=3,
        )
        label = style.plain(style.shorten(variant))
        handles.append(
            Line2D(
                [],
                [],
                color=look.colour,
                marker=look.marker,
                ls=look.dashes,
                label=label,
            )
        )
    v = _growing_v(runs, probes, values, s0)
    for slope in v:
        axes.plot(
            span, s0 + slope * span, color=style.INK, ls=(0, (4, 2)), lw=1, zorder=4
        )
    if v:
        handles.append(
            Line2D([], [], color=style.INK, ls=(0, (4, 2)), lw=1, label="$s_0^2 + vL$")
        )
    handles.append(Patch(color=style.GRID, label="Lemma 2, Pre-LN"))
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_locator(FixedLocator(list(depths)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    cut_axis(axes, values, window, looks)
    style.tidy(
        axes,
        x="depth L [blocks]",
        y="mean square of the stream, $s_L^2$",
        title=title or "Residual stream after the last block",
    )
    axes.legend(
        handles=handles,
        loc="upper left",
        bbox_to_anchor=(1.02, 1),
        frameon=False,
        fontsize=8,
        labelspacing=0.3,
        borderaxespad=0,
        handlelength=2.4,
    )
    style.caption(
        figure,
        "Mean over seeds with the 95 % Student-t interval. Dashed: s₀² + vL at the "
        "measured s₀² and v, where the stream follows it. Band: Lemma 2 of arXiv "
        "2002.04745, s₀²(1 + L/2) to s₀²(1 + 3L/2), for Pre-LN blocks of attention and "
        "feed-forward with Xavier initial values." + window.note("axis (arrows)"),
    )
    return figure


def _mean_of(runs, probes, quantity: str) -> float | None:
    return probe_values(runs, probes, quantity)["value"].mean()


def _growing_v(runs, probes, values, s0: float) -> list[float]:
    """The different v, to one digit, of the variants whose stream is s0^2 + v L."""
    gains = probe_values(runs, probes, "branch_gain").group_by("variant", "n_layers")
    gain = {(v, n): mean for v, n, mean in gains.agg(pl.col("value").mean()).rows()}
    found = {}
    for variant in values["variant"].unique(maintain_order=True):
        rows = values.filter(variant=variant).group_by("n_layers")
        means = dict(rows.agg(pl.col("value").mean()).drop_nulls().rows())
        own = [gain.get((variant, depth)) for depth in means]
        if not own or None in own or max(own) > 1.5 * min(own):
            continue
        v = float(np.mean(own))
        ratios = [means[depth] / (s0 + v * depth) for depth in means]
        if v > 0 and max(ratios) < 1.5 and min(ratios) > 1 / 1.5:
            found.setdefault(f"{v:.1g}", v)
    return list(found.values())
