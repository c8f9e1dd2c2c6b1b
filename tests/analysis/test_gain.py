"""Composite gains: products by hand, published matrices, and from run folders."""

import json
import math

import numpy as np
import polars as pl
import pytest

from analysis import report as report_module
from analysis.gain import (
    composite_gains,
    farthest,
    gain_rows,
    gain_table,
    mixing_matrices,
    ratio_rows,
    with_derived,
)
from analysis.load import load
from analysis.plots.gain import gain_figure
from analysis.plots.mixing import mixing_figure
from analysis.plots.similarity import cosine_figure, similarity_figure
from tests.analysis.test_plots import assert_readable

DRAWS = np.random.default_rng(0).standard_normal((60, 4, 4))
# arXiv 2512.24880, figure 8: mHC at 27B.
H_1 = np.array([[67, 9, 3, 22], [26, 48, 26, 0], [3, 24, 0, 73], [3, 20, 69, 9]]) / 100
H_60 = np.array([[92, 6, 1, 1], [5, 81, 1, 13], [0, 1, 97, 2], [3, 13, 0, 84]]) / 100


def sinkhorn(logits):
    m = np.exp(logits - logits.max())
    for _ in range(20):
        m = m / m.sum(axis=0)
        m = m / m.sum(axis=1, keepdims=True)
    return m


# Column sums of the product of 60 Sinkhorn matrices, largest and smallest; NumPy float64.
@pytest.mark.parametrize(
    "scale, largest, smallest",
    [
        (1, 1.000000000107, 0.999999999807),
        (4, 1.002365878507, 0.997360679261),
        (6, 1.014395256152, 0.980653683617),
    ],
)
def test_sinkhorn_matrices_keep_the_signal(scale, largest, smallest):
    gains = composite_gains([sinkhorn(scale * z) for z in DRAWS])
    np.testing.assert_allclose(gains["forward/max"], np.zeros(60), atol=1e-12)
    np.testing.assert_allclose(gains["forward/min"], np.zeros(60), atol=1e-12)
    found = np.exp([gains["backward/max"][0], gains["backward/min"][0]])
    np.testing.assert_allclose(found, [largest, smallest], atol=1e-11)


@pytest.mark.parametrize(
    "scale, row, column, digits",
    [(0.1, 14.269985304, 18.110437711, 1e-9), (0.3, 1906.78, 1494.83, 1e-5)],
)
def test_free_matrices_do_not(scale, row, column, digits):
    gains = composite_gains(np.eye(4) + scale * DRAWS)
    found = np.exp([gains["forward/norm"][-1], gains["backward/norm"][0]])
    np.testing.assert_allclose(found, [row, column], rtol=digits)


def test_published_matrices_by_hand():
    gains = composite_gains([H_1, H_60])
    # Rows of the first alone; columns of the last alone.
    np.testing.assert_allclose(np.exp(gains["forward/max"][0]), 1.01, rtol=1e-12)
    np.testing.assert_allclose(np.exp(gains["forward/min"][0]), 1.00, rtol=1e-12)
    np.testing.assert_allclose(np.exp(gains["backward/max"][1]), 1.01, rtol=1e-12)
    np.testing.assert_allclose(np.exp(gains["backward/min"][1]), 0.99, rtol=1e-12)
    # Rows of H_60 H_1, with the row sums (1.01, 1, 1, 1.01) of H_1: the first is
    # .92 * 1.01 + .06 + .01 + .01 * 1.01 = 1.0093, the last .03 * 1.01 + .13 + .84 * 1.01.
    rows = [1.0093, 0.05 * 1.01 + 0.82 + 0.13 * 1.01, 0.98 + 0.02 * 1.01, 1.0087]
    np.testing.assert_allclose(np.exp(gains["forward/max"][1]), max(rows), rtol=1e-12)
    np.testing.assert_allclose(np.exp(gains["forward/min"][1]), min(rows), rtol=1e-12)


def test_the_latest_matrix_stands_on_the_left():
    # The first doubles stream 0, the second moves it to stream 1 (and drops that).
    double, move = np.diag([2.0, 1.0]), np.array([[1.0, 0.0], [1.0, 0.0]])
    gains = composite_gains([double, move])
    # move @ double = [[2, 0], [2, 0]]: rows 2 and 2, columns 4 and 0.
    np.testing.assert_allclose(np.exp(gains["forward/min"]), [1, 2])
    np.testing.assert_allclose(np.exp(gains["backward/max"]), [4, 2])
    np.testing.assert_array_equal(gains["backward/min"], [-np.inf, -np.inf])


def test_the_sum_counts_and_not_the_size_where_signs_differ():
    gains = composite_gains([[[1.0, -3.0], [0.5, 0.5]]])
    assert np.exp(gains["forward/max"][0]) == pytest.approx(2)
    assert np.exp(gains["forward/min"][0]) == pytest.approx(1)
    assert np.exp(gains["forward/norm"][0]) == pytest.approx(4)


def test_farthest_looks_at_both_ends():
    # A loss by 5 is farther from 1 than a gain of 4.
    assert farthest(np.log([1, 4.0]), np.log([0.2, 1])) == pytest.approx(math.log(0.2))


def frame(values, step=0, run_id="a"):
    rows = [
        (run_id, step, name, "site", list(map(float, v))) for name, v in values.items()
    ]
    schema = ["run_id", "step", "quantity", "axis", "values"]
    return pl.DataFrame(rows, schema=schema, orient="row")


def mixing(matrices):
    """[sub-layers, n, n] as rows of probes name them."""
    matrices = np.asarray(matrices)
    return {
        f"mixing/{i}/{j}": matrices[:, i, j] for i, j in np.ndindex(matrices[0].shape)
    }


def test_matrices_are_read_by_row_and_column_at_the_last_step():
    early, late = DRAWS[:3], DRAWS[3:6]
    probes = pl.concat([frame(mixing(late), step=9), frame(mixing(early), step=1)])
    step, found = mixing_matrices(probes)["a"]
    assert step == 9
    np.testing.assert_array_equal(found, late)


def test_a_run_without_all_entries_is_left_out():
    whole = mixing(DRAWS[:3])
    part = {name: v for name, v in whole.items() if name != "mixing/2/1"}
    broken = whole | {"mixing/0/0": [1.0, math.nan, 1.0]}
    probes = pl.concat(
        [frame(whole), frame(part, run_id="b"), frame(broken, run_id="c")]
    )
    assert mixing_matrices(probes).keys() == {"a"}
    assert mixing_matrices(probes.clear()) == {}


def test_rows_hold_gains_and_the_farthest_of_them():
    probes = frame(mixing([np.diag([2.0, 1.0]), np.diag([1.0, 0.1])]))
    rows = {q: v for q, v in gain_rows(probes).select("quantity", "values").rows()}
    np.testing.assert_allclose(rows["composite_gain/forward/max"], [2, 2])
    np.testing.assert_allclose(rows["composite_gain/forward/min"], [1, 0.1])
    np.testing.assert_allclose(rows["composite_gain/backward/max"], [2, 1])
    np.testing.assert_allclose(rows["composite_gain/forward/farthest"], [0.1])


def test_a_branch_is_measured_against_the_stream_it_meets():
    probes = frame(
        {
            "branch_mean_square": [4, 9, 1],
            "stream_mean_square": [9, 36, 100],  # after each sub-layer
            "input_mean_square": [1],
        }
    )
    (row,) = ratio_rows(probes).rows(named=True)
    np.testing.assert_allclose(row["values"], [2, 1, 1 / 6])
    assert ratio_rows(
        probes.filter(pl.col("quantity") != "input_mean_square")
    ).is_empty()


def test_what_follows_is_added_below_what_was_recorded():
    probes = frame(mixing(DRAWS[:2]))
    both = with_derived(probes)
    assert both[: probes.height].equals(probes)
    assert both.height == probes.height + 8


@pytest.fixture
def runs(tmp_path, make_run):
    """Two variants of streams and one without, 4 seeds, 6 blocks of one sub-layer."""

    def make(n_variants=2):
        for at in range(n_variants):
            for seed in range(4):
                rng = np.random.default_rng([at, seed])
                draws = rng.standard_normal((6, 4, 4))
                free = np.eye(4) + 0.3 * draws
                chosen = free if at % 2 else [sinkhorn(z) for z in draws]
                values = mixing(chosen) | {
                    "stream_similarity": rng.uniform(-0.1, 1, 6),
                    "stream_cosine": rng.uniform(0.8, 1, 6),
                    "branch_mean_square": np.ones(6),
                    "stream_mean_square": np.arange(2.0, 8),
                    "input_mean_square": [1.0],
                }
                if at == 2:
                    values = {"stream_cosine": np.ones(6)}
                probes = frame(values).drop("run_id").rows(named=True)
                make_run(
                    tmp_path / "x",
                    task="depth",
                    norm=f"norm{at}",
                    seed=seed,
                    n_layers=6,
                    probes=probes,
                )
        return load(tmp_path / "x")

    return make


def test_the_table_has_one_entry_per_variant_with_intervals(runs):
    table = runs(3)
    tight, free = gain_table(table.runs, gain_rows(table.probes))
    assert (tight["variant"], tight["depth"], tight["step"]) == ("norm0", 6, 0)
    np.testing.assert_allclose(tight["forward"]["max"]["mean"], 1, rtol=1e-12)
    np.testing.assert_allclose(tight["forward"]["farthest"], 1, rtol=1e-12)
    # The same products outside: seeds 0 to 3 of the second variant.
    ends = []
    for seed in range(4):
        rng = np.random.default_rng([1, seed])
        product = np.eye(4)
        for h in np.eye(4) + 0.3 * rng.standard_normal((6, 4, 4)):
            product = h @ product
        ends.append(abs(product.sum(axis=1)).max())
    geometric = np.exp(np.mean(np.log(ends)))
    np.testing.assert_allclose(free["forward"]["max"]["mean"], geometric, rtol=1e-12)
    assert free["forward"]["max"]["n"] == 4
    assert free["forward"]["max"]["low"] < geometric < free["forward"]["max"]["high"]


def test_figures_are_readable(runs):
    table = runs(2)
    probes = with_derived(table.probes)
    for draw in (gain_figure, mixing_figure, similarity_figure, cosine_figure):
        assert_readable(draw(table.runs, probes))


def test_figures_of_many_variants_are_readable(runs):
    table = runs(10)
    probes = with_derived(table.probes)
    for draw in (gain_figure, similarity_figure):
        assert_readable(draw(table.runs, probes))


def test_the_figure_draws_the_gains_and_their_interval(runs):
    table = runs(2)
    figure = gain_figure(table.runs, with_derived(table.probes))
    forward, _ = figure.axes
    largest = [line for line in forward.lines if line.get_marker() not in ("", "None")]
    for line, matrices in zip(largest, (sinkhorn, None), strict=True):
        draws = [
            np.random.default_rng([0 if matrices else 1, s]).standard_normal((6, 4, 4))
            for s in range(4)
        ]
        all_gains = [
            composite_gains(
                [sinkhorn(z) for z in d] if matrices else np.eye(4) + 0.3 * d
            )
            for d in draws
        ]
        expected = np.exp(np.mean([g["forward/max"] for g in all_gains], axis=0))
        np.testing.assert_allclose(line.get_ydata(), expected, rtol=1e-12)
    assert len(forward.collections) == 2  # a band for the largest
    low, high = forward.get_ylim()
    assert low * high == pytest.approx(1)


def test_a_cosine_has_no_place_beyond_one(runs):
    table = runs(2)
    low, high = similarity_figure(table.runs, table.probes).axes[0].get_ylim()
    assert -1.02 <= low < high <= 1.02


def test_a_report_of_streams_has_their_table_and_figures(runs, tmp_path, monkeypatch):
    def no_drawing(figure, path):
        path.write_bytes(b"")  # drawing ten figures takes seconds

    monkeypatch.setattr(report_module.style, "save", no_drawing)
    runs(3)
    report = report_module.write_report(tmp_path / "x")
    names = {path.stem for path in report.figures}
    assert names >= {
        "composite_gain",
        "mixing",
        "stream_similarity",
        "stream_cosine",
        "branch_to_stream",
    }
    page = report.page.read_text()
    assert "Composite gain of the streams" in page
    summary = json.loads((tmp_path / "x" / "report" / "summary.json").read_text())
    assert len(summary["families"][0]["gains"]) == 2


def test_without_streams_nothing_follows(tmp_path, make_depth_runs):
    make_depth_runs(tmp_path / "x")
    table = load(tmp_path / "x")
    assert gain_rows(table.probes).is_empty()
    assert gain_table(table.runs, table.probes) == []
