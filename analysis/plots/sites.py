"""Quantities per sub-layer: what the figures of streams share."""

import math
from collections.abc import Callable

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from analysis.plots import style
from analysis.plots.strands import WHOLE, Strand, draw_behind, note, strands
from analysis.stats import Interval, t_interval
from analysis.text import count

PER_ROW = 5


def site_rows(runs: pl.DataFrame, probes: pl.DataFrame, quantity: str) -> pl.DataFrame:
    """Rows of one quantity of the deepest networks of each variant that did not fail, at
    the last probed step of the run; columns variant, n_layers, seed, step, values.

    Raises:
        ValueError: no run recorded finite values of `quantity`.
    """
    rows = (
        probes.filter(pl.col("quantity") == quantity)
        .filter(pl.col("step") == pl.col("step").max().over("run_id"))
        .join(
            runs.filter(pl.col("state") != "failed")
            .drop_nulls(["n_layers", "seed"])
            .select("run_id", "variant", "n_layers", "seed"),
            on="run_id",
            maintain_order="right",
        )
        .filter(
            pl.col("values").list.len() > 0,
            pl.col("values").list.eval(pl.element().is_not_null()).list.all(),
        )
    )
    rows = rows.filter(
        pl.col("n_layers") == pl.col("n_layers").max().over("variant"),
    )
    if rows.is_empty():
        raise ValueError(f"no run recorded finite values of {quantity}")
    return rows.select("variant", "n_layers", "seed", "step", "values")


def intervals(rows: pl.DataFrame, variant: str) -> list[Interval]:
    """Mean over seeds with its 95 % t interval at every sub-layer of one variant."""
    lists = rows.filter(variant=variant)["values"].to_list()
    length = len(lists[0])
    columns = np.asarray([v for v in lists if len(v) == length], float).T
    return [t_interval(column) for column in columns]


def draw(
    axes: Axes,
    means: list[Interval],
    look: style.Look,
    transform: Callable = lambda values: values,
    has_band: bool = True,
    strand: Strand = WHOLE,
    **keywords,
) -> None:
    """One line over the sub-layers, numbered from 1, with its band.

    strand: which of them; all.
    """
    x = np.arange(1, len(means) + 1)[strand.sites]
    means = means[strand.sites]
    axes.plot(
        x,
        transform(np.asarray([m.mean for m in means])),
        **{
            "color": look.colour,
            "ls": look.dashes,
            "lw": 1.5,
            "marker": look.marker,
            "ms": 4.5,
            "markevery": max(1, len(x) // 8),
        }
        | strand.marks(look)
        | keywords,
    )
    if has_band and means[0].n >= style.BAND_SEEDS:
        low, high = (
            transform(np.asarray([getattr(m, end) for m in means]))
            for end in ("low", "high")
        )
        axes.fill_between(x, low, high, color=look.colour, alpha=0.13, lw=0)


def draw_strands(
    axes: Axes, means: list[Interval], n_blocks: int, look: style.Look, label: str = ""
) -> None:
    """`draw` of each sub-layer of the blocks by itself, under one label."""
    for strand in strands(len(means), n_blocks):
        shown = {"label": label} if strand.is_last and label else {}
        draw(axes, means, look, strand=strand, **shown)


def cosines_figure(
    runs: pl.DataFrame, probes: pl.DataFrame, quantity: str, *, y: str, title: str
) -> Figure:
    """Mean over seeds of a cosine at each sub-layer with a 95 % t band; a panel per
    variant where there are nine or more, the others in grey behind it.

    Raises:
        ValueError: no run recorded `quantity`.
    """
    rows = site_rows(runs, probes, quantity)
    looks = style.looks(list(runs["variant"].unique(maintain_order=True)))
    present = set(rows["variant"])
    looks = {variant: look for variant, look in looks.items() if variant in present}
    means = {variant: intervals(rows, variant) for variant in looks}
    blocks = dict(rows.select("variant", "n_layers").iter_rows())
    if len(looks) < style.MANY:
        figure = style.new_figure(8.5, max(4.2, 1.6 + 0.22 * len(looks)))
        axes = figure.subplots()
        for variant, look in looks.items():
            own = means[variant], blocks[variant]
            draw_strands(axes, *own, look, label=style.plain(variant))
        style.tidy(axes, x="sub-layer (1 is next to the input)", y=y, title=title)
        beside(axes)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    else:
        figure = _panels(means, blocks, looks, f"{title}: {y}")
    shown = figure.axes[0]  # panels share it
    low, high = shown.get_ylim()
    shown.set_ylim(
        max(low, -1.02), min(high, 1.02)
    )  # a band may pass what a cosine can
    text = caption_text(rows) + note(len(rows["values"][0]), rows["n_layers"][0])
    style.caption(figure, text)
    return figure


def _panels(means: dict, blocks: dict, looks: dict, title: str) -> Figure:
    n_rows = math.ceil(len(looks) / PER_ROW)
    figure = style.new_figure(9.2, 1.3 + 1.35 * n_rows)
    panels = figure.subplots(n_rows, PER_ROW, sharex=True, sharey=True, squeeze=False)
    for axes, (variant, look) in zip(panels.flat, looks.items(), strict=False):
        for name, other in means.items():
            x = np.arange(1, len(other) + 1)
            draw_behind(axes, x, np.array([m.mean for m in other]), blocks[name])
        draw_strands(axes, means[variant], blocks[variant], look)
        style.small_panel(axes, variant)
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    for axes in list(panels.flat)[len(looks) :]:
        axes.set_visible(False)
    for axes in list(panels.flat)[max(0, len(looks) - PER_ROW) : len(looks)]:
        axes.tick_params(labelbottom=True)
        axes.set_xlabel("sub-layer", fontsize=8, color=style.INK)
    figure.suptitle(title, fontsize=11, color=style.INK)
    return figure


def beside(axes: Axes) -> None:
    """The legend, to the right of the axes."""
    axes.legend(
        loc="upper left",
        bbox_to_anchor=(1.02, 1),
        frameon=False,
        fontsize=9,
        borderaxespad=0,
    )


def caption_text(rows: pl.DataFrame) -> str:
    """Over how many seeds, at which steps and depths."""
    sizes = rows.group_by("variant").len()["len"]
    low, high = sizes.min(), sizes.max()
    seeds = count(high, "seed") if low == high else f"{low} to {high} seeds"

    def listed(name: str) -> str:
        return ", ".join(map(str, sorted(set(rows[name]))))

    return (
        f"Mean over seeds, {seeds} per line; band: 95 % Student-t interval (from "
        f"{style.BAND_SEEDS} seeds). Step {listed('step')}; networks of "
        f"{listed('n_layers')} blocks, the deepest of each variant."
    )
