"""Gradient norm over the layers of a network."""

import polars as pl
from matplotlib.figure import Figure

from analysis.plots import layers, style


def profile_figure(
    runs: pl.DataFrame,
    probes: pl.DataFrame,
    quantity: str = "grad_norm/ffn/up/kernel",
    title: str = "",
    y: str = "",
) -> Figure:
    """||dloss/dW||_F of every block, or another quantity of a block: geometric mean over
    seeds with a 95 % t band, one line per variant and (at most three) depths. Runs that
    were probed more than once give two panels, at the first and at the last probed
    step. Nine variants or more: a small panel each, at the last probed step.

    Args:
        runs, probes: frames of one family.
        quantity: a probe with a value per layer.
        title, y: instead of its name.

    Raises:
        ValueError: no run recorded `quantity`.
    """
    rows = layers.layer_rows(runs, probes, quantity)
    looks = style.looks(list(runs["variant"].unique(maintain_order=True)))
    steps = _steps(rows)
    name = quantity.removeprefix("grad_norm/")
    is_gradient = name != quantity
    head = title or f"{'Gradient of ' if is_gradient else ''}{name} over the blocks"
    norm = r"$\Vert\partial\,$loss$/\partial W\Vert_F$" if is_gradient else y or name
    if rows["variant"].n_unique() >= style.MANY:
        part = rows.filter(pl.col("step") == steps[-1])
        where = f"{head}, step {steps[-1]}" if len(steps) > 1 else head
        return layers.panels_figure(part, looks, where, norm)
    figure = style.new_figure(4.6 + 3.9 * len(steps), layers.height_for(rows))
    panels = figure.subplots(1, len(steps), sharey=True, squeeze=False)[0]
    sizes = []
    for axes, step in zip(panels, steps, strict=True):
        part = rows.filter(pl.col("step") == step)
        sizes += layers.draw_layers(axes, part, looks)
        layers.finish(axes, rows)
        style.tidy(
            axes,
            x="block (1 is next to the input)",
            y=norm if axes is panels[0] else "",
            title=head if len(steps) == 1 else f"{head}, step {step}",
        )
    layers.legend(panels[-1], rows, looks)
    style.caption(figure, layers.caption_text(rows, sizes))
    return figure


def _steps(rows: pl.DataFrame) -> list[int]:
    """The first probed step and the last that most of the runs reached."""
    reached = rows.group_by("step").agg(pl.col("run_id").n_unique()).sort("step")
    most = reached.filter(pl.col("run_id") * 2 >= reached["run_id"].max())
    return sorted({most["step"][0], most["step"][-1]})
