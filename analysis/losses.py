"""Losses of training runs: the last one of each run, and curves over seeds."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from analysis.stats import t_interval

VAL_LOSS, VAL_ACCURACY = "val_loss", "val_accuracy"
# What a training run ends with, and whether the larger is the better.
ENDS = {VAL_LOSS: False, VAL_ACCURACY: True}

# More logged steps than this are averaged in groups: noise, not shape, is lost.
MAX_POINTS = 100


def final_losses(
    runs: pl.DataFrame, metrics: pl.DataFrame, column: str = "val_loss"
) -> pl.DataFrame:
    """One row per completed run: run_id, family, variant, seed, step, value.

    `value` is the last `column` (a loss in nats/token, an accuracy as a share) that is
    not null; a run without one, or without a seed, has no row.
    """
    last = (
        metrics.drop_nulls(column)
        .sort("run_id", "step")
        .unique("run_id", keep="last", maintain_order=True)
        .select("run_id", "step", value=column)
    )
    return (
        runs.filter(pl.col("state") == "completed")
        .drop_nulls("seed")
        .select("run_id", "family", "variant", "seed")
        .join(last, on="run_id", maintain_order="left")
    )


def first_measured(
    runs: pl.DataFrame, metrics: pl.DataFrame, columns: Sequence[str]
) -> tuple[str, pl.DataFrame]:
    """The first of these columns that a completed run has, and its `final_losses`.

    The last of them, and no rows, where no run has any.
    """
    for column in columns:
        found = final_losses(runs, metrics, column)
        if not found.is_empty():
            break
    return column, found


def best_first(means: Mapping[str, float], column: str) -> list[str]:
    """The names, by their means of a column: small losses, large accuracies first."""
    is_larger_better = ENDS.get(column, False)
    return sorted(means, key=means.__getitem__, reverse=is_larger_better)


def loss_unit(runs: pl.DataFrame) -> str:
    """What a loss is counted in: `nats/token`, or `nats/image` of images alone."""
    units = set(runs["data_unit"].drop_nulls())
    return "nats/image" if units == {"image"} else "nats/token"


def counted_runs(runs: pl.DataFrame) -> pl.DataFrame:
    """Runs of one variant whose mean is drawn: the completed, else the unfinished.

    A mean over runs of which some stop (diverged, failed) would improve where the bad
    ones drop out; those are counted, not averaged.
    """
    completed = runs.filter(pl.col("state") == "completed")
    if not completed.is_empty():
        return completed
    return runs.filter(~pl.col("state").is_in(["diverged", "failed"]))


def group_size(metrics: pl.DataFrame, max_points: int = MAX_POINTS) -> int:
    """How many neighbouring logged steps make one point of a curve."""
    steps = metrics.drop_nulls("loss")["step"].n_unique()
    return max(1, math.ceil(steps / max_points))


def curve(
    runs: pl.DataFrame, metrics: pl.DataFrame, column: str, group: int = 1
) -> pl.DataFrame:
    """Mean over seeds: step, mean, low, high (95 % Student t; null for one seed), n.

    Args:
        runs: of one variant.
        metrics: of all runs.
        column: "loss" or "val_loss" [nats/token], or "val_accuracy".
        group: average so many neighbouring rows of each run first.
    """
    rows = (
        metrics.join(runs.select("run_id"), on="run_id", how="semi")
        .drop_nulls(column)
        .sort("run_id", "step")
        .with_columns(point=pl.int_range(pl.len()).over("run_id") // group)
        .group_by("run_id", "point", maintain_order=True)
        .agg(pl.col("step").mean(), pl.col(column).mean())
        .group_by("step", maintain_order=True)
        .agg(pl.col(column))
        .sort("step")
    )
    intervals = [t_interval(values) for values in rows[column]]
    return pl.DataFrame(
        {
            "step": rows["step"],
            "mean": np.array([i.mean for i in intervals], dtype=float),
            "low": np.array([i.low for i in intervals], dtype=float),
            "high": np.array([i.high for i in intervals], dtype=float),
            "n": pl.Series([i.n for i in intervals], dtype=pl.Int64),
        }
    )
