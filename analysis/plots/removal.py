"""What a network loses with each of its blocks."""

import polars as pl
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from analysis.plots import sites, style

REMOVAL = "loss_without_block"


def removal_figure(runs: pl.DataFrame, probes: pl.DataFrame) -> Figure:
    """Rise of the loss where one block is left out: mean over seeds with a 95 % t band,
    one line per variant. Below zero the network is better without the block.

    Raises:
        ValueError: no run recorded it.
    """
    rows = rises(runs, probes)
    looks = style.looks(list(runs["variant"].unique(maintain_order=True)))
    present = set(rows["variant"])
    figure = style.new_figure(8.5, max(4.2, 1.6 + 0.22 * len(present)))
    axes = figure.subplots()
    axes.axhline(0, color=style.MUTED, lw=0.8, zorder=0)
    for variant, look in looks.items():
        if variant in present:
            means = sites.intervals(rows, variant)
            sites.draw(axes, means, look, label=style.plain(variant))
    style.tidy(
        axes,
        x="block that is left out (1 is next to the input)",
        y="rise of the loss [nats]",
        title="Loss without a block, minus loss",
    )
    sites.beside(axes)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    style.caption(figure, sites.caption_text(rows))
    return figure


def rises(runs: pl.DataFrame, probes: pl.DataFrame) -> pl.DataFrame:
    """`sites.site_rows` of the loss without each block, less the loss of the run."""
    keys = ["variant", "n_layers", "seed", "step"]
    whole = sites.site_rows(runs, probes, "loss")
    whole = whole.select(*keys, loss=pl.col("values").list.first())
    rows = sites.site_rows(runs, probes, REMOVAL).join(whole, on=keys)
    return rows.with_columns(pl.col("values") - pl.col("loss")).drop("loss")
