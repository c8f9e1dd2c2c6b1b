"""Gradient over blocks and depths at once, one panel per variant."""

import math

import numpy as np
import polars as pl
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from analysis.depths import UP, profile_lists
from analysis.plots import style
from analysis.plots.window import say_beyond, window_of

MAX_PANELS = 12
PER_ROW = 4


def heatmap_figure(
    runs: pl.DataFrame, probes: pl.DataFrame, quantity: str = UP, title: str = ""
) -> Figure:
    """Geometric mean over seeds of every block (vertical, log; 1 is next to the input)
    in networks of every depth (horizontal). Of more than 12 variants those whose blocks
    differ most are shown; the colours are those of `window.window_of`.

    Args:
        runs, probes: frames of one depth family.
        quantity: a probe with a value per layer.

    Raises:
        ValueError: no completed run recorded `quantity`.
    """
    maps = _maps(runs, probes, quantity)
    if not maps:
        raise ValueError(f"no completed run recorded {quantity}")
    n_variants = len(maps)
    by_spread = sorted(maps, key=lambda v: -_spread(maps[v]))
    shown = [v for v in maps if v in by_spread[:MAX_PANELS]]
    window = window_of({v: np.concatenate([*maps[v].values()]) for v in shown})
    low, high = _apart(window.low, window.high)
    columns = min(PER_ROW, len(shown))
    rows = math.ceil(len(shown) / columns)
    figure = style.new_figure(
        max(style.ONE_COLUMN + 1.2, 1.0 + 1.75 * columns), 1.6 + 1.75 * rows
    )
    panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    depths = sorted({depth for of in maps.values() for depth in of})
    for axes, variant in zip(panels.flat, shown, strict=False):
        for depth, means in maps[variant].items():
            place = depths.index(depth)
            edges = np.arange(len(means) + 1) + 0.5
            image = axes.pcolormesh(
                [place - 0.5, place + 0.5],
                edges,
                np.asarray(means)[:, None],
                norm=LogNorm(low, high),
                cmap="viridis",
                rasterized=True,  # hundreds of cells per column
            )
        if variant in window.beyond:
            say_beyond(axes, window.beyond[variant])
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda y, _: f"{y:g}")
        axes.set_ylim(max(depths) + 0.5, 0.5)
        axes.set_xticks(range(len(depths)), depths, fontsize=7, rotation=90)
        axes.tick_params(labelsize=7, colors=style.INK)
        axes.set_title(
            style.plain(style.shorten(variant, 22)),
            loc="left",
            fontsize=8,
            color=style.INK,
        )
    for axes in list(panels.flat)[len(shown) :]:
        axes.set_visible(False)
    # Not supxlabel: the caption would lie on it.
    for axes in list(panels.flat)[max(0, len(shown) - columns) : len(shown)]:
        axes.tick_params(labelbottom=True)
        axes.set_xlabel("depth L [blocks]", fontsize=8, color=style.INK)
    for axes in panels[:, 0]:
        axes.set_ylabel("block", fontsize=8, color=style.INK)
    name = quantity.removeprefix("grad_norm/")
    figure.suptitle(
        title or f"Gradient of {name} over blocks and depths",
        fontsize=11,
        color=style.INK,
    )
    bar = figure.colorbar(image, ax=panels, shrink=0.9, pad=0.02, extend=window.extend)
    bar.set_label(r"$\Vert\partial\,$loss$/\partial W\Vert_F$", fontsize=9)
    bar.ax.tick_params(which="both", labelsize=7)
    text = "Geometric mean over seeds; block 1 is next to the input, on top."
    if n_variants > len(shown):
        text += (
            f" {len(shown)} of {n_variants} variants: those whose blocks differ most."
        )
    style.caption(figure, text + window.note("colours"))
    return figure


def _maps(runs, probes, quantity: str) -> dict[str, dict[int, np.ndarray]]:
    """variant -> depth -> geometric mean of every block."""
    found = {}
    for variant in runs["variant"].unique(maintain_order=True):
        own = runs.filter(variant=variant)
        for depth in sorted(own["n_layers"].drop_nulls().unique()):
            lists = list(profile_lists(own, probes, quantity, depth).values())
            if lists:
                usual = [v for v in lists if len(v) == len(lists[0])]
                means = np.exp(np.log(usual).mean(axis=0))
                found.setdefault(variant, {})[depth] = means
    return found


def _spread(by_depth: dict[int, np.ndarray]) -> float:
    return max(float(np.ptp(np.log(means))) for means in by_depth.values())


def _apart(low: float, high: float) -> tuple[float, float]:
    """Colour limits at least 10 % apart, so that equal values have a colour."""
    return (low, high) if high > 1.1 * low else (low / 1.05, high * 1.05)
