"""Mixing matrices of chosen sub-layers, and their product over the whole depth."""

import numpy as np
import polars as pl
from matplotlib.figure import Figure

from analysis.gain import mixing_matrices
from analysis.plots import style

MOST_VARIANTS = 8


def mixing_figure(runs: pl.DataFrame, probes: pl.DataFrame) -> Figure:
    """One row per variant: the matrix of the first, the middle and the last sub-layer and
    the product of all, of the run with the smallest seed in the deepest network, at its
    last probed step. Row i: what the new stream i takes from each old one.

    Raises:
        ValueError: no run recorded mixing matrices.
    """
    found = mixing_matrices(probes)
    own = (
        runs.filter(pl.col("run_id").is_in(list(found)))
        .sort("n_layers", "seed", descending=[True, False], maintain_order=True)
        .unique("variant", keep="first", maintain_order=True)
    )
    if own.is_empty():
        raise ValueError("no run recorded mixing matrices")
    chosen = dict(own.select("variant", "run_id").rows())
    order = [v for v in runs["variant"].unique(maintain_order=True) if v in chosen]
    shown = order[:MOST_VARIANTS]
    figure = style.new_figure(8.2, 1.0 + 1.75 * len(shown))
    panels = figure.subplots(len(shown), 4, squeeze=False)
    for row, variant in zip(panels, shown, strict=True):
        _, matrices = found[chosen[variant]]
        length = len(matrices)
        places = (0, length // 2, length - 1)
        product = np.eye(matrices.shape[-1])
        for matrix in matrices:
            product = matrix @ product
        parts = [(f"sub-layer {p + 1}", matrices[p]) for p in places]
        parts.append((f"product of {length}", product))
        for axes, (name, matrix) in zip(row, parts, strict=True):
            image = _draw(axes, matrix)
            axes.set_title(name, fontsize=8, color=style.INK, pad=3)
        row[0].set_ylabel(
            style.plain(style.shorten(variant, 26)), fontsize=8, color=style.INK
        )
    bar = figure.colorbar(image, ax=panels, shrink=0.7, pad=0.02, extend="both")
    bar.ax.tick_params(labelsize=7)
    figure.suptitle("Mixing matrices", fontsize=11, color=style.INK)
    left_out = len(order) - len(shown)
    more = f" {left_out} more variants are not shown." if left_out else ""
    style.caption(
        figure,
        "Mean over tokens, one run per variant: the smallest seed of the deepest network, "
        "at its last probed step. Row i is what the new stream i takes from each old "
        f"stream. Colours end at -1 and 1; numbers do not.{more}",
    )
    return figure


def _draw(axes, matrix: np.ndarray):
    image = axes.imshow(matrix, cmap="RdBu_r", vmin=-1, vmax=1)
    axes.set_xticks([])
    axes.set_yticks([])
    for side in axes.spines.values():
        side.set_color(style.GRID)
    if len(matrix) <= 4:
        for (i, j), value in np.ndenumerate(matrix):
            axes.text(
                j,
                i,
                _short(value),
                ha="center",
                va="center",
                fontsize=5.5,
                color="white" if abs(value) > 0.6 else style.INK,
            )
    return image


def _short(value: float) -> str:
    """Two decimals where they fit."""
    if abs(value) < 10:
        return f"{value:.2f}".replace("-0.00", "0.00")
    return f"{value:.0f}" if abs(value) < 1000 else f"{value:.0e}".replace("e+0", "e")
