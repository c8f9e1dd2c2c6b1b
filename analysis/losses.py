"""Losses of training runs: the last one of each run, and curves over seeds."""

import math

import numpy as np
import polars as pl

from analysis.stats import t_interval

# More logged steps than this are averaged in groups: noise, not shape, is lost.
MAX_POINTS = 100


def final_losses(
    runs: pl.DataFrame, metrics: pl.DataFrame, column: str = "val_loss"
) -> pl.DataFrame:
    """One row per completed run: run_id, family, variant, seed, step, value.

    `value` is the last `column` [nats/token] that is not null; a run without one, or
    without a seed, has no row.
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
        column: "loss" or "val_loss" [nats/token].
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
