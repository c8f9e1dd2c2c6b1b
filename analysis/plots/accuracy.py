"""Validation accuracy against training step, and where every variant ended."""

import polars as pl
from matplotlib.figure import Figure

from analysis.losses import VAL_ACCURACY, counted_runs, curve
from analysis.plots import style
from analysis.plots.finals import draw_finals
from analysis.states import states_text
from analysis.text import count

WINDOW = 0.1  # of the steps: before, every model is as bad as the next


def accuracy_figure(runs: pl.DataFrame, metrics: pl.DataFrame) -> Figure:
    """Left: mean share of validation examples that are right, per variant, with a 95 %
    Student-t interval over seeds. Right: the last one of each variant, best on top; it
    is the legend.

    Args:
        runs, metrics: frames of one family, as `analysis.load` gives them.

    Raises:
        ValueError: no run logged an accuracy.
    """
    metrics = metrics.join(runs.select("run_id"), on="run_id", how="semi")
    if metrics.drop_nulls(VAL_ACCURACY).is_empty():
        raise ValueError("no run of this family logged an accuracy")
    variants = list(runs["variant"].unique(maintain_order=True))
    looks = style.looks(variants)
    figure = style.new_figure(11, max(4.8, 1.6 + 0.36 * len(variants)))
    left, right = figure.subplots(1, 2, width_ratios=[2.6, 1])
    settled = []
    for variant in variants:
        counted = counted_runs(runs.filter(pl.col("variant") == variant))
        line = curve(counted, metrics, VAL_ACCURACY).filter(pl.col("step") > 0)
        look = looks[variant]
        left.plot(
            line["step"],
            line["mean"],
            color=look.colour,
            ls=look.dashes,
            marker=look.marker,
            ms=4.5,
            mec="white",
            mew=0.6,
            lw=1.5,
        )
        if counted.height >= style.BAND_SEEDS:
            left.fill_between(
                line["step"],
                line["low"],
                line["high"],
                color=look.colour,
                alpha=0.15,
                lw=0,
            )
        late = line.filter(pl.col("step") >= WINDOW * pl.col("step").max())
        settled += late["mean"].to_list()
    if settled:
        pad = 0.05 * (max(settled) - min(settled)) or 0.01
        left.set_ylim(max(0, min(settled) - pad), min(1, max(settled) + pad))
    title = "Accuracy on the validation data"
    style.tidy(left, x="training step", y="share that is right", title=title)
    draw_finals(right, runs, metrics, variants, looks, (VAL_ACCURACY,))
    style.tidy(right, x="final validation accuracy", y="")
    right.spines["left"].set_visible(False)
    right.set_title("where each variant ended", loc="left", fontsize=11, pad=8)
    style.caption(figure, _caption(runs))
    return figure


def _caption(runs: pl.DataFrame) -> str:
    n = runs["seed"].drop_nulls().n_unique()
    text = f"Line: mean over {count(n, 'seed')} per variant"
    if n > 1:
        text += "; band and bars: 95 % Student-t interval over seeds"
    left_out = states_text(runs, without=("completed",))
    return f"{text}. Not completed: {left_out}." if left_out else f"{text}."
