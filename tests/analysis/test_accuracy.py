"""Validation accuracy: loaded, compared, drawn, expected, like the validation loss."""

import io
import json

import numpy as np
import polars as pl
import pytest
from rich.console import Console

from analysis.decide import CONFIRMED, NOT_CONFIRMED
from analysis.load import load
from analysis.losses import best_first, first_measured, loss_unit
from analysis.plots.accuracy import accuracy_figure
from analysis.plots.finals import draw_finals
from analysis.plots.loss import loss_figure
from analysis.plots.style import looks, new_figure
from analysis.report import figures_of, write_report
from analysis.status import read_status, read_sweep
from analysis.status_table import render
from analysis.verdicts import evaluate

# norm -> accuracy of seeds 0, 1, 2; the better one has the larger loss.
ENDS = {"layernorm": (0.97, 0.98, 0.99), "derf": (0.96, 0.97, 0.98)}
LOSSES = {"layernorm": 0.3, "derf": 0.1}
EXPECTED = {
    "id": "V", "variant": {"norm": "layernorm"}, "quantity": "val_accuracy",
    "fit": "mean", "expected": 0.98, "tolerance": 0.03,
}  # fmt: skip


@pytest.fixture
def images(tmp_path, make_run):
    """Six runs on images, of which `ENDS` says how they ended, and one that diverged."""
    home = tmp_path / "vit"
    tags = {"expected": [EXPECTED, EXPECTED | {"id": "W", "expected": 0.9}]}
    for norm, ends in ENDS.items():
        for seed, end in enumerate(ends):
            rows = [
                {"step": 0, "val_loss": 2.3, "val_accuracy": 0.1},
                {"step": 50, "loss": 1.0, "val_loss": 0.9, "val_accuracy": 0.8},
                {"step": 100, "loss": 0.2, "val_loss": LOSSES[norm]}
                | {"val_accuracy": end},
            ]
            make_run(home, norm=norm, seed=seed, metrics=rows, tags=tags)
    rows = [{"step": 50, "loss": 1.0, "val_loss": 0.9, "val_accuracy": 0.5}]
    make_run(home, norm="dyt", state="diverged", diverged_step=60, metrics=rows)
    for path in home.glob("*/env.json"):
        env = json.loads(path.read_text())
        env["data"]["unit"] = "image"
        path.write_text(json.dumps(env))
    return home


def test_it_is_a_column_of_numbers_and_null_where_nothing_was_measured(
    images, tmp_path, make_run
):
    found = load(images).metrics
    assert found.schema["val_accuracy"] == pl.Float64
    assert found["val_accuracy"].drop_nulls().len() == 6 * 3 + 1
    make_run(tmp_path / "text", metrics=[{"step": 1, "loss": 2.0}])
    assert load(tmp_path / "text").metrics["val_accuracy"].to_list() == [None]


def test_the_report_compares_it_paired_by_seed_the_largest_first(images):
    (family,) = write_report(images).summary["families"]
    best, other = family["accuracies"]
    assert [best["variant"], other["variant"]] == ["layernorm", "derf"]
    assert best["mean"] == pytest.approx(0.98)
    assert best["bits_per_byte"] is None or np.isnan(best["bits_per_byte"])
    # 0.97, 0.98, 0.99: SD 0.01, t_{2, 0.975} = 4.302653, over sqrt(3).
    assert best["half_width"] == pytest.approx(0.0248414, rel=1e-5)
    assert other["to_best"]["mean"] == pytest.approx(-0.01)
    assert other["to_best"]["half_width"] == pytest.approx(0, abs=1e-12)
    # By the loss the order is the other one.
    assert [row["variant"] for row in family["losses"]] == ["derf", "layernorm"]


def test_the_page_has_its_table_and_figure_and_says_nats_per_image(images):
    report = write_report(images)
    page = report.page.read_text()
    assert "Validation accuracy" in page
    assert "0.980 ± 0.025" in page
    assert "validation loss [nats/image]" in page
    assert "nats/token" not in page
    assert any(path.name == "accuracy.png" for path in report.figures)


def test_a_family_without_it_has_no_table_and_no_figure(tmp_path, make_run):
    make_run(tmp_path / "x", metrics=[{"step": 10, "loss": 2.0, "val_loss": 2.0}])
    table = load(tmp_path / "x")
    assert "accuracy" not in figures_of(table, table.runs["family"][0])
    report = write_report(tmp_path / "x")
    assert report.summary["families"][0]["accuracies"] == []
    page = report.page.read_text()
    assert "Validation accuracy" not in page
    assert "[nats/token]" in page
    with pytest.raises(ValueError, match="no run of this family logged an accuracy"):
        accuracy_figure(table.runs, table.metrics)


def test_lines_are_means_over_completed_seeds_after_the_start(images):
    table = load(images)
    left, right = accuracy_figure(table.runs, table.metrics).axes
    lines = {tuple(np.round(line.get_ydata(), 6)) for line in left.lines}
    assert lines == {(0.8, 0.98), (0.8, 0.97), ()}  # the diverged one is not averaged
    labels = [tick.get_text() for tick in right.get_yticklabels()]
    assert labels[0].startswith("layernorm")
    assert labels[2].endswith("1 diverged")


def test_finals_of_losses_still_have_the_smallest_on_top(images):
    table = load(images)
    variants = list(table.runs["variant"].unique(maintain_order=True))
    axes = new_figure(4, 4).subplots()
    assert draw_finals(axes, table.runs, table.metrics, variants, looks(variants)) == (
        "val_loss"
    )
    assert axes.get_yticklabels()[0].get_text().startswith("derf")


def test_the_loss_of_images_is_per_image(images):
    table = load(images)
    left, right = loss_figure(table.runs, table.metrics).axes
    assert left.get_ylabel() == "loss [nats/image]"
    assert right.get_xlabel() == "final validation loss [nats/image]"
    mixed = table.runs.with_columns(data_unit=pl.Series(["byte"] + ["image"] * 6))
    assert loss_unit(mixed) == "nats/token"


def test_an_expectation_may_be_about_it(images):
    near, far = evaluate(load(images))
    assert (near.quantity, near.n, near.verdict) == ("val_accuracy", 3, CONFIRMED)
    assert near.measured == pytest.approx(0.98)
    assert far.verdict == NOT_CONFIRMED


def test_an_expectation_of_runs_without_it_says_so(tmp_path, make_run):
    rows = [{"step": 10, "loss": 2.0, "val_loss": 2.0}]
    make_run(tmp_path / "x", metrics=rows, tags={"expected": [EXPECTED]})
    (outcome,) = evaluate(load(tmp_path / "x"))
    assert outcome.reason == "no completed run with a validation accuracy"


def test_status_shows_the_last_one_and_none_of_a_run_that_diverged(images):
    found = [read_status(path) for path in sorted(images.glob("*-*"))]
    accuracies = {run.val_accuracy for run in found if run.state == "completed"}
    assert accuracies == {0.96, 0.97, 0.98, 0.99}
    (gone,) = [run for run in found if run.state == "diverged"]
    assert (gone.val_loss, gone.val_accuracy) == (None, None)
    text = io.StringIO()
    Console(file=text, width=200).print(render(read_sweep(images), None, 200))
    assert "val accuracy" in text.getvalue()


def test_which_of_two_is_better():
    means = {"a": 1.0, "b": 2.0}
    assert best_first(means, "val_loss") == best_first(means, "loss") == ["a", "b"]
    assert best_first(means, "val_accuracy") == ["b", "a"]


def test_the_first_column_that_was_measured_is_taken(images):
    table = load(images)
    asked = ("nothing", "val_accuracy", "val_loss")
    metrics = table.metrics.with_columns(nothing=pl.lit(None, pl.Float64))
    name, found = first_measured(table.runs, metrics, asked)
    assert name == "val_accuracy"
    assert found.height == 6


def test_an_accuracy_on_bytes_has_no_bits(tmp_path, make_run):
    rows = [{"step": 10, "loss": 2.0, "val_loss": 2.0, "val_accuracy": 0.5}]
    make_run(tmp_path / "x", metrics=rows)
    (family,) = write_report(tmp_path / "x").summary["families"]
    assert np.isnan(family["accuracies"][0]["bits_per_byte"])
    assert family["losses"][0]["bits_per_byte"] > 0
