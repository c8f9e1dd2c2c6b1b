"""What the figures over layers share: one line per variant and depth."""

import math
from collections import Counter
from collections.abc import Callable

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from analysis.plots import style
from analysis.plots.strands import draw_behind, note, strands
from analysis.plots.window import Window, say_beyond, window_of
from analysis.stats import geometric_interval
from analysis.text import count

# Of many depths these many are drawn: the smallest, the largest and between.
MAX_DEPTHS = 3
PANELS_PER_ROW = 5
DEPTH_WIDTHS = (2.4, 1.7, 1.0)


def layer_rows(runs: pl.DataFrame, probes: pl.DataFrame, quantity: str) -> pl.DataFrame:
    """Rows of one quantity with variant, n_layers and step, of runs that did not fail.

    Only finite, positive lists: a log axis has no place for the others.

    Raises:
        ValueError: no run recorded `quantity`.
    """
    rows = (
        probes.filter(pl.col("quantity") == quantity)
        .join(
            runs.filter(pl.col("state") != "failed")
            .drop_nulls("n_layers")
            .select("run_id", "variant", "n_layers"),
            on="run_id",
        )
        .filter(
            pl.col("values").list.len() > 0,
            pl.col("values").list.eval(pl.element().is_not_null()).list.all(),
        )
        .filter(pl.col("values").list.min() > 0)
    )
    if rows.is_empty():
        raise ValueError(f"no run recorded finite values of {quantity}")
    return rows


def shown_depths(depths: list[int]) -> list[int]:
    """At most three of them, evenly spread over the sorted list."""
    depths = sorted(set(depths))
    places = np.linspace(0, len(depths) - 1, min(MAX_DEPTHS, len(depths)))
    return [depths[round(place)] for place in places]


def draw_layers(
    axes: Axes,
    rows: pl.DataFrame,
    looks: dict[str, style.Look],
    transform: Callable[[np.ndarray], np.ndarray] = lambda values: values,
) -> list[int]:
    """Draws geometric means over seeds with 95 % t bands against the block.

    An entry of an axis with more than one site per block stands at a fraction of it:
    the second of two sub-layers of block 3 at 3, the first at 2.5. Each sub-layer has a
    line of its own.

    Returns:
        The number of seeds behind each line.
    """
    sizes = []
    widths = depth_widths(rows)
    for variant, depth, lists in _lines(rows, looks, widths):
        values = transform(np.asarray(lists, float))
        look, n_sites = looks[variant], values.shape[1]
        x = np.arange(1, n_sites + 1) * depth / n_sites
        for strand in strands(n_sites, depth):
            places = x[strand.sites]
            means = [geometric_interval(column) for column in values.T[strand.sites]]
            axes.plot(
                places,
                [m.mean for m in means],
                color=look.colour,
                ls=look.dashes,
                lw=widths[depth],
                marker=look.marker,
                ms=4.5,
                # A marker on each of 384 blocks would be a bar.
                markevery=max(1, len(places) // 8),
                **strand.marks(look),
            )
            if len(lists) >= style.BAND_SEEDS:
                axes.fill_between(
                    places,
                    [m.low for m in means],
                    [m.high for m in means],
                    color=look.colour,
                    alpha=0.13,
                    lw=0,
                )
        sizes.append(len(lists))
    return sizes


def draw_panels(
    figure: Figure,
    rows: pl.DataFrame,
    looks: dict[str, style.Look],
    transform: Callable[[np.ndarray], np.ndarray] = lambda values: values,
) -> tuple[list[int], Window]:
    """Many variants: one small panel each, the others behind it in grey; the deepest
    networks only.

    Returns:
        The number of seeds behind each line.
    """
    rows = rows.filter(pl.col("n_layers") == rows["n_layers"].max())
    present = set(rows["variant"])
    shown = [variant for variant in looks if variant in present]
    columns = min(PANELS_PER_ROW, len(shown))
    n_rows = math.ceil(len(shown) / columns)
    panels = figure.subplots(n_rows, columns, sharex=True, sharey=True, squeeze=False)
    backdrop = {}
    for variant, depth, lists in _lines(rows, looks, depth_widths(rows)):
        values = transform(np.asarray(lists, float))
        x = np.arange(1, values.shape[1] + 1) * depth / values.shape[1]
        line = np.exp(np.log(values).mean(axis=0))
        backdrop[variant] = (x, line, depth)
    window = window_of({variant: line for variant, (_, line, _) in backdrop.items()})
    sizes = []
    for axes, variant in zip(panels.flat, shown, strict=False):
        for other in backdrop.values():
            draw_behind(axes, *other)
        own = {variant: looks[variant]}
        sizes += draw_layers(axes, rows.filter(variant=variant), own, transform)
        finish(axes, rows)
        style.small_panel(axes, variant)
        if variant in window.beyond:
            say_beyond(axes, window.beyond[variant])
    for axes in list(panels.flat)[len(shown) :]:
        axes.set_visible(False)
    if window.is_cut:
        panels.flat[0].set_ylim(window.limits)
    _few_ticks(panels.flat[0])
    for axes in list(panels.flat)[max(0, len(shown) - columns) : len(shown)]:
        axes.tick_params(labelbottom=True)
        axes.set_xlabel("block", fontsize=8, color=style.INK)
    return sizes, window


def _few_ticks(axes: Axes) -> None:
    """A small panel has room for few numbers, and needs one of 1, 2, 5 in its range."""
    low, high = axes.get_ylim()
    room = max(1.0, math.sqrt(4 * low / high))
    axes.set_ylim(low / room, high * room)
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=4))
    axes.yaxis.set_major_formatter(lambda y, _: f"{y:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())


def panels_figure(
    rows: pl.DataFrame,
    looks: dict[str, style.Look],
    title: str,
    y: str,
    transform: Callable[[np.ndarray], np.ndarray] = lambda values: values,
) -> Figure:
    """The figure of `draw_panels`, with what is on its axes in title and caption."""
    deep = rows.filter(pl.col("n_layers") == rows["n_layers"].max())
    n_rows = math.ceil(deep["variant"].n_unique() / PANELS_PER_ROW)
    figure = style.new_figure(9.2, 1.3 + 1.35 * n_rows)
    sizes, window = draw_panels(figure, rows, looks, transform)
    figure.suptitle(f"{title}: {y}", fontsize=11, color=style.INK)
    deepest = rows["n_layers"].max()
    style.caption(
        figure,
        f"{caption_text(rows, sizes)} Networks of {deepest} blocks; grey: the other "
        "variants. Block 1 is next to the input." + window.note("axis"),
    )
    return figure


def depth_widths(rows: pl.DataFrame) -> dict[int, float]:
    """Line width of each depth that is drawn: the deeper, the thinner."""
    depths = shown_depths(rows["n_layers"].to_list())
    widths = DEPTH_WIDTHS if len(depths) > 1 else DEPTH_WIDTHS[1:]
    return dict(zip(depths, widths, strict=False))


def _lines(rows: pl.DataFrame, looks: dict, widths: dict[int, float]):
    """Yields (variant, depth, lists over seeds) in the order of the looks."""
    for variant in looks:
        for depth in widths:
            lists = rows.filter(variant=variant, n_layers=depth)["values"].to_list()
            if lists:
                # A list of another length has no place beside the others.
                (usual, _), *_ = Counter(map(len, lists)).most_common(1)
                yield variant, depth, [v for v in lists if len(v) == usual]


def legend(axes: Axes, rows: pl.DataFrame, looks: dict[str, style.Look]) -> None:
    """To the right of the axes: variants by colour and mark, depths by width."""
    present = set(rows["variant"])
    handles = [
        Line2D(
            [],
            [],
            color=look.colour,
            ls=look.dashes,
            lw=1.7,
            marker=look.marker,
            ms=4.5,
            label=style.plain(variant),
        )
        for variant, look in looks.items()
        if variant in present
    ]
    widths = depth_widths(rows)
    if len(widths) > 1:
        handles += [
            Line2D([], [], color=style.MUTED, lw=width, label=f"L = {depth} blocks")
            for depth, width in widths.items()
        ]
    axes.legend(
        handles=handles,
        loc="upper left",
        bbox_to_anchor=(1.02, 1),
        frameon=False,
        fontsize=9,
        borderaxespad=0,
    )


def height_for(rows: pl.DataFrame) -> float:
    """Height of a figure [inch] that holds the legend of these rows."""
    entries = rows["variant"].n_unique() + len(depth_widths(rows))
    return max(5.0, 1.6 + 0.22 * entries)


def finish(axes: Axes, rows: pl.DataFrame) -> None:
    """Log y; log x too where the deepest network has many blocks."""
    axes.set_yscale("log")
    if rows["n_layers"].max() > 32:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    else:  # blocks are counted, not measured
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def caption_text(rows: pl.DataFrame, sizes: list[int]) -> str:
    """What lines and bands are, and over how many seeds."""
    low, high = min(sizes), max(sizes)
    seeds = count(high, "seed") if low == high else f"{low} to {high} seeds"
    return (
        f"Geometric mean over seeds, {seeds} per line; band: 95 % Student-t interval "
        f"(from {style.BAND_SEEDS} seeds). Runs that failed are left out."
        + note(len(rows["values"][0]), rows["n_layers"][0])
    )
