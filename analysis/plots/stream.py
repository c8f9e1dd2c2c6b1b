"""Size of the residual stream over the layers of a network."""

import numpy as np
import polars as pl
from matplotlib.figure import Figure

from analysis.depths import STREAM
from analysis.plots import layers, style


def stream_figure(runs: pl.DataFrame, probes: pl.DataFrame, title: str = "") -> Figure:
    """Root mean square of the stream, sqrt(`stream_mean_square`), after each sub-layer
    at the first probed step (initialisation): geometric mean over seeds with a 95 % t
    band, one line per variant and (at most three) depths.

    Args:
        runs, probes: frames of one family.

    Raises:
        ValueError: no run recorded the stream.
    """
    rows = layers.layer_rows(runs, probes, STREAM)
    step = rows["step"].min()
    rows = rows.filter(pl.col("step") == step)
    looks = style.looks(list(runs["variant"].unique(maintain_order=True)))
    head = title or f"Residual stream over the blocks, step {step}"
    name = "RMS of the residual stream"
    if rows["variant"].n_unique() >= style.MANY:
        return layers.panels_figure(rows, looks, head, name, np.sqrt)
    figure = style.new_figure(8.5, layers.height_for(rows))
    axes = figure.subplots()
    sizes = layers.draw_layers(axes, rows, looks, np.sqrt)
    layers.finish(axes, rows)
    style.tidy(
        axes,
        x="block (1 is next to the input)",
        y=name,
        title=head,
    )
    layers.legend(axes, rows, looks)
    style.caption(figure, layers.caption_text(rows, sizes))
    return figure
