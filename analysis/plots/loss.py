"""Loss against training step, and where every variant ended."""

import math

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.losses import counted_runs, curve, group_size, loss_unit
from analysis.plots import style
from analysis.plots.finals import draw_finals
from analysis.states import states_text
from analysis.text import count

MAX_MARKS = 10
FIRST_DROP = 0.04  # of the steps

REFERENCE_NAMES = {
    "unigram": "unigram entropy",
    "bigram": "bigram entropy",
    "entropy_rate": "entropy rate (floor)",
}


def loss_figure(runs: pl.DataFrame, metrics: pl.DataFrame, title: str = "") -> Figure:
    """Left: mean training loss per variant with a 95 % t interval over seeds, the
    validation loss as markers, reference entropies as dotted lines, and every
    diverged run alone with a cross where it left. Right: the final validation loss
    (without one: the last training loss) per variant, best on top; it is the legend.

    Args:
        runs, metrics: frames of one family, as `analysis.load` gives them.
        title: over the left panel.

    Raises:
        ValueError: no run logged a loss.
    """
    metrics = metrics.join(runs.select("run_id"), on="run_id", how="semi")
    if metrics.drop_nulls("loss").is_empty():
        raise ValueError("no run of this family logged a loss")
    variants = list(runs["variant"].unique(maintain_order=True))
    looks = style.looks(variants)
    figure = style.new_figure(11, max(4.8, 1.6 + 0.36 * len(variants)))
    left, right = figure.subplots(1, 2, width_ratios=[2.6, 1])
    group = group_size(metrics)

    window = []
    for place, variant in enumerate(variants):
        members = runs.filter(pl.col("variant") == variant)
        window += _draw_variant(left, members, metrics, looks[variant], group, place)
        _draw_diverged(left, members, metrics, looks[variant])
    _set_window(left, window, metrics)
    _draw_references(left, runs)
    unit = loss_unit(runs)
    style.tidy(left, x="training step", y=f"loss [{unit}]", title=title)

    measure = draw_finals(right, runs, metrics, variants, looks)
    name = "validation" if measure == "val_loss" else "training"
    style.tidy(right, x=f"final {name} loss [{unit}]", y="")
    right.spines["left"].set_visible(False)
    right.set_title("where each variant ended", loc="left", fontsize=11, pad=8)
    style.caption(figure, _caption(runs, metrics, group))
    return figure


def _draw_variant(axes, members, metrics, look, group, place) -> list[pl.DataFrame]:
    counted = counted_runs(members)
    line = curve(counted, metrics, "loss", group)
    axes.plot(
        line["step"], line["mean"], color=look.colour, ls=look.dashes, lw=1.5, zorder=3
    )
    if counted.height >= style.BAND_SEEDS:
        axes.fill_between(
            line["step"], line["low"], line["high"], color=look.colour, alpha=0.15, lw=0
        )
    points = curve(counted, metrics, "val_loss").filter(pl.col("step") > 0)
    # Marks of different variants take turns, where there are many.
    every = max(1, math.ceil(points.height / MAX_MARKS))
    shown = points[place % every :: every]
    axes.plot(
        shown["step"],
        shown["mean"],
        color=look.colour,
        marker=look.marker,
        ls="none",
        ms=5.5,
        mec="white",
        mew=0.7,
        zorder=4,
    )
    return [line.select("step", "mean"), points.select("step", "mean")]


def _draw_diverged(axes, members, metrics, look) -> None:
    gone = members.filter(pl.col("state") == "diverged")
    for run_id in gone["run_id"]:
        row = metrics.filter(pl.col("run_id") == run_id).drop_nulls("loss").sort("step")
        if row.is_empty():
            continue
        axes.plot(row["step"], row["loss"], color=look.colour, lw=0.8, alpha=0.45)
        axes.plot(
            row["step"][-1],
            row["loss"][-1],
            marker="x",
            color=look.colour,
            ms=8,
            mew=2,
            # The last finite loss may lie above the window: mark it at its edge.
            clip_on=False,
            zorder=5,
            gid="diverged",
        )


def _set_window(axes: Axes, drawn: list[pl.DataFrame], metrics: pl.DataFrame) -> None:
    """The window holds the averaged curves after the first drop from the untrained
    loss, which would press everything else flat; a diverged run may leave it."""
    means = pl.concat(drawn)
    if means.is_empty():  # only diverged runs: nothing else to look at
        means = metrics.select(pl.col("step").cast(pl.Float64), mean="loss")
    means = means.drop_nulls()
    settled = means.filter(pl.col("step") >= FIRST_DROP * means["step"].max())
    low, high = means["mean"].min(), settled["mean"].max()
    pad = 0.05 * (high - low) or 0.1
    axes.set_ylim(low - 2 * pad, high + 3 * pad)
    for line in axes.lines:
        if line.get_gid() == "diverged":
            line.set_ydata(np.clip(line.get_ydata(), low - pad, high + 2 * pad))
    axes.margins(x=0.01)


def _draw_references(axes: Axes, runs: pl.DataFrame) -> None:
    low, high = axes.get_ylim()
    found = {
        (column.removeprefix("reference."), value)
        for column in runs.columns
        if column.startswith("reference.")
        for value in runs[column].drop_nulls().unique()
    }
    for name, value in sorted(found, key=lambda pair: pair[1]):
        if not low - 0.5 * (high - low) < value < high:
            continue
        low = min(low, value - 0.06 * (high - low))
        axes.axhline(value, color=style.MUTED, ls=(0, (1, 2)), lw=1.1, zorder=1)
        axes.annotate(
            f"{style.plain(REFERENCE_NAMES.get(name, name))} {value:.2f}",
            (1, value),
            xycoords=("axes fraction", "data"),
            xytext=(-3, 3),
            textcoords="offset points",
            ha="right",
            va="bottom",
            fontsize=8.5,
            color=style.MUTED,
            bbox={"facecolor": "white", "alpha": 0.75, "lw": 0, "pad": 0.6},
            zorder=6,
        )
    axes.set_ylim(low, high)


def _caption(runs: pl.DataFrame, metrics: pl.DataFrame, group: int) -> str:
    sizes = [
        counted_runs(members).height
        for _, members in runs.group_by("variant", maintain_order=True)
    ]
    low, high = min(filter(None, sizes), default=0), max(sizes)
    seeds = count(high, "seed") if low == high else f"{low} to {high} seeds"
    parts = [f"Line: mean training loss over {seeds} per variant"]
    if high > 1:
        parts[0] += (
            "; bars: 95 % Student-t interval over seeds; band: the same, from "
            f"{style.BAND_SEEDS} seeds"
        )
    if not metrics.drop_nulls("val_loss").is_empty():
        parts.append("markers: validation loss")
    if group > 1:
        parts.append(f"each point of a line averages {group} logged steps")
    text = "; ".join(parts) + "."
    left_out = states_text(runs, without=("completed",))
    if left_out:
        text += f" Not completed: {left_out}"
        if (runs["state"] == "diverged").any():
            text += " (cross: last finite loss of a diverged run, not in the mean)"
        text += "."
    return text
