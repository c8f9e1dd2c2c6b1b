import math

import numpy as np

from analysis.load import load
from analysis.losses import counted_runs, curve, final_losses, group_size


def test_final_loss_is_the_last_one_that_is_a_number(tmp_path, make_run):
    rows = [
        {"step": 0, "val_loss": 5.0},
        {"step": 20, "loss": 2.2, "val_loss": 2.0},
        {"step": 30, "loss": 2.1, "val_loss": None, "finite": False},
        {"step": 40, "loss": 1.9},
    ]
    make_run(tmp_path / "x", seed=3, metrics=rows)
    make_run(tmp_path / "x", seed=4, metrics=rows, state="diverged", diverged_step=30)
    make_run(tmp_path / "x", seed=5, metrics=rows[3:])
    table = load(tmp_path / "x")
    losses = final_losses(table.runs, table.metrics)
    assert losses.select("seed", "step", "value").rows() == [(3, 20, 2.0)]
    training = final_losses(table.runs, table.metrics, "loss")
    assert training["value"].to_list() == [1.9, 1.9]


def test_curve_is_mean_and_t_interval_per_step(tmp_path, make_run):
    for seed, loss in ((0, 1.0), (1, 2.0), (2, 3.0)):
        rows = [{"step": 0, "val_loss": 9.0}, {"step": 10, "loss": loss}]
        rows += [{"step": 20, "loss": loss / 2}] if seed else []
        make_run(tmp_path / "x", seed=seed, metrics=rows)
    table = load(tmp_path / "x")
    got = curve(table.runs, table.metrics, "loss")
    assert got["step"].to_list() == [10, 20]
    np.testing.assert_allclose(got["mean"], [2.0, 1.25])
    # SD 1, n 3: t_{2, 0.975} = 4.302653.
    np.testing.assert_allclose(got["high"][0], 2 + 4.302653 / math.sqrt(3), rtol=1e-6)
    assert got["n"].to_list() == [3, 2]
    assert curve(table.runs, table.metrics, "grad_norm").is_empty()


def test_grouping_averages_within_a_run_before_it_averages_over_seeds(
    tmp_path, make_run
):
    for seed in (0, 1):
        rows = [{"step": s, "loss": float(s + seed)} for s in range(10, 50, 10)]
        make_run(tmp_path / "x", seed=seed, metrics=rows)
    table = load(tmp_path / "x")
    assert group_size(table.metrics, max_points=2) == 2
    assert group_size(table.metrics, max_points=3) == 2
    assert group_size(table.metrics, max_points=4) == 1
    got = curve(table.runs, table.metrics, "loss", group=2)
    assert got["step"].to_list() == [15.0, 35.0]
    np.testing.assert_allclose(got["mean"], [15.5, 35.5])


def test_runs_that_left_are_not_averaged(tmp_path, make_run):
    make_run(tmp_path / "x", norm="a", seed=0)
    make_run(tmp_path / "x", norm="a", seed=1, state="diverged")
    make_run(tmp_path / "x", norm="a", seed=2, state="running")
    make_run(tmp_path / "x", norm="b", seed=0, state="running")
    make_run(tmp_path / "x", norm="b", seed=1, state="failed")
    runs = load(tmp_path / "x").runs
    assert counted_runs(runs.filter(variant="a · pre"))["seed"].to_list() == []
    assert counted_runs(runs.filter(variant="a"))["seed"].to_list() == [0]
    assert counted_runs(runs.filter(variant="b"))["seed"].to_list() == [0]
