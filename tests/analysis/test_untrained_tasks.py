"""Reports of the tasks that look at untrained models: propagate and update_size."""

import json

import pytest

from analysis.load import load
from analysis.report import figures_of, write_report

SECOND = "experiments.tasks.update_size.UpdateSize"


def row(quantity, values, axis="layer"):
    return {"step": 0, "quantity": quantity, "axis": axis, "values": list(values)}


@pytest.fixture
def propagated(tmp_path, make_run):
    for placement, rate in (("pre", 0.5), ("post", 0.8)):
        for seed in range(4):
            make_run(
                tmp_path / "p",
                task="propagate",
                placement=placement,
                n_layers=5,
                seed=seed,
                metrics=[{"step": 0, "loss": 0.1}],
                probes=[
                    row("activation/std", [rate**i for i in range(1, 6)]),
                    row("block_influence", [0.1] * 5),
                    row("token_cosine", [-0.1] * 5),
                ],
                tags={
                    "expected": [
                        {
                            "id": "rate",
                            "variant": {"placement": "pre"},
                            "quantity": "activation/std all",
                            "fit": "exponential",
                            "depth": 5,
                            "expected": -0.6931,
                            "tolerance": 0.001,
                        }
                    ]
                },
            )
    return tmp_path / "p"


def test_forward_statistics_have_verdicts_and_figures(propagated):
    report = write_report(propagated)
    (outcome,) = report.summary["expected"]
    assert outcome["verdict"] == "confirmed"
    assert outcome["measured"] == pytest.approx(-0.693147, abs=1e-6)
    names = {path.stem for path in report.figures}
    assert {"profile_activation_std", "profile_block_influence"} <= names
    # Cosines below zero have no place on a log axis; the others are drawn.
    assert "profile_token_cosine" not in names
    assert "loss" not in names  # nothing was trained


def test_a_figure_of_activations_is_not_called_a_gradient(propagated):
    table = load(propagated)
    figure = figures_of(table, "propagate/LanguageModel")["profile_activation_std"]
    (axes, *_) = figure.axes
    assert axes.get_title(loc="left") == "Spread of the activations"
    assert axes.get_ylabel() == "standard deviation"


@pytest.fixture
def updated(tmp_path, make_run):
    for placement, power in (("pre", 0.5), ("post", 1.0)):
        for n_layers in (6, 12, 24):
            for seed in range(3):
                make_run(
                    tmp_path / "u",
                    task="update_size",
                    placement=placement,
                    n_layers=n_layers,
                    seed=seed,
                    config_extra={"task": {"_target_": SECOND}},
                    metrics=[{"step": 0, "loss": 0.1}],
                    probes=[row("update_rms", [n_layers**power], "scalar")],
                )
    return tmp_path / "u"


def test_update_size_is_a_depth_law_with_its_own_figure(updated):
    table = load(updated)
    assert set(table.runs["family"]) == {"updatesize/LanguageModel"}
    # The depth is no part of what a variant is.
    assert set(table.runs["variant"]) == {"pre", "post"}
    figure = figures_of(table, "updatesize/LanguageModel")["update_rms"]
    text = " ".join(t.get_text() for t in figure.axes[0].get_legend().get_texts())
    assert "0.500" in text
    assert "1.000" in text
    summary = write_report(updated).summary
    assert json.dumps(summary["states"]) == '{"completed": 18}'


@pytest.fixture
def inspected(tmp_path, make_run):
    for norm, rises in (("rmsnorm", (2.0, -0.5, 0.25)), ("derf", (1.0, 1.0, 1.0))):
        for seed in range(3):
            loss = 4.0 + seed
            make_run(
                tmp_path / "i",
                task="inspect",
                norm=norm,
                n_layers=3,
                seed=seed,
                metrics=[{"step": 0, "loss": loss}],
                probes=[
                    row("loss", [loss], "scalar"),
                    row("loss_without_block", [loss + rise for rise in rises]),
                ],
            )
    return tmp_path / "i"


def test_removal_shows_the_rise_of_each_runs_own_loss(inspected):
    names = {path.stem for path in write_report(inspected).figures}
    assert "removal" in names
    assert "loss" not in names  # nothing was trained
    figure = figures_of(load(inspected), "inspect/LanguageModel")["removal"]
    lines = {line.get_label(): line.get_ydata() for line in figure.axes[0].lines}
    (rmsnorm,) = [y for label, y in lines.items() if "rmsnorm" in label]
    assert rmsnorm == pytest.approx([2.0, -0.5, 0.25])
    assert figure.axes[0].get_yscale() == "linear"  # some blocks do harm
