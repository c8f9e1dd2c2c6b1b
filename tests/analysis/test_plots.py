import itertools
import math

import numpy as np
import pytest
from matplotlib.container import ErrorbarContainer
from matplotlib.text import Text

from analysis.depths import DOWN, UP
from analysis.load import load
from analysis.plots import style
from analysis.plots.depth import depth_figure
from analysis.plots.forest import forest_figure
from analysis.plots.growth import growth_figure
from analysis.plots.heatmap import heatmap_figure
from analysis.plots.layers import shown_depths
from analysis.plots.loss import loss_figure
from analysis.plots.profile import profile_figure
from analysis.plots.stream import stream_figure


def texts(figure):
    """Every text that is drawn, with its box in pixels."""
    figure.canvas.draw()
    renderer = figure.canvas.get_renderer()
    hidden = hidden_tick_labels(figure)
    found = []
    for artist in figure.findobj(Text):
        box = artist.get_window_extent(renderer)
        is_drawn = artist.get_visible() and artist.get_text().strip()
        if is_drawn and id(artist) not in hidden:
            found.append((artist.get_text(), box))
    return found


def hidden_tick_labels(figure):
    """Ids of the labels of ticks beyond the limits: they exist but are not drawn."""
    hidden = set()
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks()):
                if not low <= tick.get_loc() <= high:
                    hidden |= {id(tick.label1), id(tick.label2)}
    return hidden


def assert_readable(figure):
    width, height = figure.canvas.get_width_height()
    drawn = texts(figure)
    assert drawn
    for text, box in drawn:
        assert box.x0 >= 0, text
        assert box.y0 >= 0, text
        assert box.x1 <= width, text
        assert box.y1 <= height, text
    for (a, first), (b, second) in itertools.combinations(drawn, 2):
        wide = min(first.x1, second.x1) - max(first.x0, second.x0)
        high = min(first.y1, second.y1) - max(first.y0, second.y0)
        assert wide <= 1 or high <= 1, f"{a!r} and {b!r} overlap"


def caption(figure):
    return " ".join(figure.texts[-1].get_text().split())


@pytest.fixture
def sweep(tmp_path, make_run, make_losses):
    """12 variants x 3 seeds; one seed diverged, one variant failed altogether."""

    def make(norms=6, seeds=3, steps=200):
        for i, place in itertools.product(range(norms), ("pre", "post")):
            for seed in range(seeds):
                state = "completed"
                if (i, place, seed) == (1, "post", 0):
                    state = "diverged"
                if (i, place) == (2, "post"):
                    state = "failed"
                rows = make_losses(
                    5.5,
                    1.5 + 0.1 * i + 0.3 * (place == "post"),
                    seed,
                    steps=steps,
                    stop=steps // 2 if state == "diverged" else None,
                )
                make_run(
                    tmp_path / "x",
                    norm=f"norm_{i}",
                    placement=place,
                    seed=seed,
                    state=state,
                    diverged_step=steps // 2 if state == "diverged" else None,
                    metrics=[] if state == "failed" else rows,
                    references={"unigram": 3.3, "bigram": 2.4, "entropy_rate": 1.2},
                    probes=[
                        {
                            "step": step,
                            "quantity": UP,
                            "axis": "layer",
                            "values": [0.1, 0.2, 0.3, 0.4],
                        }
                        for step in (0, steps)
                    ],
                )
        return load(tmp_path / "x")

    return make


@pytest.fixture
def laws(tmp_path, make_depth_runs):
    make_depth_runs(tmp_path / "x", seeds=3, depths=(6, 12, 24, 48))
    return load(tmp_path / "x")


def test_loss_line_is_the_mean_over_completed_seeds(tmp_path, make_run):
    for seed, loss in enumerate((1.0, 2.0, 4.5)):
        rows = [{"step": s, "loss": loss / s, "val_loss": loss} for s in (1, 2, 3)]
        make_run(tmp_path / "x", seed=seed, metrics=rows)
    make_run(
        tmp_path / "x",
        seed=3,
        state="diverged",
        metrics=[{"step": 1, "loss": 90.0}, {"step": 2, "loss": None, "finite": False}],
    )
    table = load(tmp_path / "x")
    figure = loss_figure(table.runs, table.metrics)
    left, right = figure.axes
    np.testing.assert_allclose(left.lines[0].get_ydata(), [2.5, 1.25, 2.5 / 3])
    (cross,) = [line for line in left.lines if line.get_gid() == "diverged"]
    assert cross.get_marker() == "x"
    assert cross.get_ydata()[0] <= left.get_ylim()[1]  # at the edge, still in sight
    (label,) = [tick.get_text() for tick in right.get_yticklabels()]
    # SD of 1, 2, 4.5 is 1.8028; t_{2, 0.975} = 4.302653.
    half = 4.302653 * math.sqrt(3.25) / math.sqrt(3)
    assert label == f"layernorm · pre\n{2.5:.1f} ± {half:.1f}, n=3; 1 diverged"
    assert "over 3 seeds" in caption(figure)
    assert "Not completed: 1 diverged" in caption(figure)


def test_loss_figure_of_many_variants_is_readable(sweep):
    table = sweep()
    figure = loss_figure(table.runs, table.metrics, "Loss while training")
    assert_readable(figure)
    left, right = figure.axes
    drawn = [text for text, _ in texts(figure)]
    assert "bigram entropy 2.40" in drawn
    assert "entropy rate (floor) 1.20" in drawn
    assert (left.get_xlabel(), left.get_ylabel()) == (
        "training step",
        "loss [nats/token]",
    )
    rows = [tick.get_text().split("\n")[0] for tick in right.get_yticklabels()]
    assert len(rows) == 12
    assert rows[0] == "norm_0 · pre"  # the lowest loss stands on top
    assert rows[-1] == "norm_2 · post"  # nothing completed
    assert caption(figure).endswith("not in the mean).")


def test_one_seed_has_no_interval_and_no_band(tmp_path, make_run, make_losses):
    make_run(tmp_path / "x", metrics=make_losses(5, 2, 0))
    table = load(tmp_path / "x")
    figure = loss_figure(table.runs, table.metrics)
    left, right = figure.axes
    assert not left.collections
    (bar,) = [c for c in right.containers if isinstance(c, ErrorbarContainer)]
    assert not bar.has_xerr
    assert "interval" not in caption(figure)
    assert "over 1 seed per variant" in caption(figure)


def test_sweep_in_which_everything_diverged_still_has_a_figure(
    tmp_path, make_run, make_losses
):
    for seed in range(2):
        rows = make_losses(5, 2, seed, stop=30)
        make_run(tmp_path / "x", seed=seed, state="diverged", metrics=rows)
    table = load(tmp_path / "x")
    figure = loss_figure(table.runs, table.metrics)
    assert_readable(figure)
    assert figure.axes[1].get_yticklabels()[0].get_text().endswith("2 diverged")


def test_depth_figure_says_exponent_interval_and_n(laws):
    figure = depth_figure(laws.runs, laws.probes)
    assert_readable(figure)
    labels = [t.get_text() for t in figure.axes[0].get_legend().get_texts()]
    pre = next(label for label in labels if label.startswith("pre"))
    assert r"$L^{-0." in pre
    assert r"\pm" in pre
    assert "n=3" in pre
    # -1/2 ln(1 + L) on 6..48 has slope -0.466; the measured s0^2 and v scatter by 2 %.
    theory = float(pre.split("theory ")[1].rstrip(")").replace("\N{MINUS SIGN}", "-"))
    assert abs(theory + 0.466) < 0.005
    post = next(label for label in labels if label.startswith("post"))
    assert "theory 0.000" in post


def test_figures_of_many_variants_are_readable(tmp_path, make_depth_runs):
    norms = [f"norm_{i}" for i in range(6)]
    make_depth_runs(tmp_path / "x", seeds=1, depths=(6, 24), norms=norms)
    table = load(tmp_path / "x")
    names = {f"norm_{i} · {place}" for i in range(6) for place in ("pre", "post")}
    for draw in (depth_figure, growth_figure):
        figure = draw(table.runs, table.probes)
        assert_readable(figure)
        labels = [t.get_text() for t in figure.axes[0].get_legend().get_texts()]
        assert names <= {label.split(":")[0] for label in labels}
    for draw in (profile_figure, stream_figure, heatmap_figure):
        figure = draw(table.runs, table.probes)
        assert_readable(figure)
        titles = {axes.get_title(loc="left") for axes in figure.axes}
        assert names <= titles
    figure = forest_figure(table.runs, table.probes)
    assert_readable(figure)
    assert {t.get_text() for t in figure.axes[0].get_yticklabels()} == names


def test_thirty_five_variants_still_fit(tmp_path, make_run, make_depth_probes):
    for i in range(35):
        for depth in (6, 12):
            make_run(
                tmp_path / "x",
                task="depth",
                model="M",
                norm=f"a_norm_with_a_long_name_{i}",
                n_layers=depth,
                probes=make_depth_probes(depth, i),
            )
    table = load(tmp_path / "x")
    for draw in (depth_figure, forest_figure):
        assert_readable(draw(table.runs, table.probes))
    figure = heatmap_figure(table.runs, table.probes)
    assert len([a for a in figure.axes if a.get_title(loc="left")]) == 12
    assert "12 of 35 variants" in caption(figure)


def test_guides_have_the_slopes_they_are_named_for(laws):
    axes = depth_figure(laws.runs, laws.probes).axes[0]
    names = {text.get_text() for text in axes.texts}
    guides = [line for line in axes.lines if len(line.get_xdata()) == 2]
    assert len(guides) == len(names)
    slopes = {}
    for line in guides:
        (x0, x1), (y0, y1) = line.get_data()
        slopes[round(math.log(y1 / y0) / math.log(x1 / x0), 6)] = line
    assert {0.0, -0.5} <= set(slopes)
    assert {"$L^{0}$", "$L^{-1/2}$"} <= names


def test_forest_shows_the_exponents_and_their_theory(laws):
    figure = forest_figure(laws.runs, laws.probes)
    assert_readable(figure)
    axes = figure.axes[0]
    rows = [t.get_text() for t in axes.get_yticklabels()]
    assert rows == ["pre", "post"]  # the smallest exponent on top
    bars = [c for c in axes.containers if isinstance(c, ErrorbarContainer)]
    assert len(bars) == 4  # W1 and W2 of both
    diamonds = [line for line in axes.lines if line.get_marker() == "D"]
    # -1/2 ln(1 + L) on 6..48 has slope -0.466.
    got = [line.get_xdata()[0] for line in diamonds]
    np.testing.assert_allclose(got, [-0.466, 0], atol=0.005)
    numbers = [t.get_text() for t in axes.texts]
    assert numbers[0].startswith("\N{MINUS SIGN}0.4")


def test_growth_draws_lemma_2_and_the_measured_line(laws):
    figure = growth_figure(laws.runs, laws.probes)
    assert_readable(figure)
    axes = figure.axes[0]
    band = axes.collections[0].get_paths()[0].vertices
    # s0^2 (1 + 3/2 L) at L = 48; s0^2 is measured: 1 +- 2 %.
    assert abs(band[:, 1].max() / 73 - 1) < 0.03
    assert abs(band[:, 1].min() / 4 - 1) < 0.03
    labels = [t.get_text() for t in axes.get_legend().get_texts()]
    assert labels[-2:] == ["$s_0^2 + vL$", "Lemma 2, Pre-LN"]
    (line,) = [line for line in axes.lines if len(line.get_xdata()) == 100]
    np.testing.assert_allclose(line.get_ydata()[-1], 49, rtol=0.05)


def test_heatmap_has_the_geometric_mean_of_every_block(tmp_path, make_run):
    for seed, scale in enumerate((1.0, 4.0)):
        for depth in (2, 3):
            probe = {"step": 0, "quantity": UP, "axis": "layer"}
            probe["values"] = [scale * (b + 1) for b in range(depth)]
            make_run(
                tmp_path / "x", task="depth", n_layers=depth, seed=seed, probes=[probe]
            )
    table = load(tmp_path / "x")
    figure = heatmap_figure(table.runs, table.probes)
    assert_readable(figure)
    meshes = figure.axes[0].collections
    cells = [mesh.get_array().ravel().tolist() for mesh in meshes]
    np.testing.assert_allclose(cells[0], [2, 4])
    np.testing.assert_allclose(cells[1], [2, 4, 6])


def test_saved_figure_is_a_picture_and_vectors(laws, tmp_path):
    figure = growth_figure(laws.runs, laws.probes)
    style.save(figure, tmp_path / "a.png")
    first = (tmp_path / "a.pdf").read_bytes()
    assert first.startswith(b"%PDF")
    assert b"/Type3" not in first
    assert b"/CIDFontType2" in first
    style.save(growth_figure(laws.runs, laws.probes), tmp_path / "b.png")
    assert (tmp_path / "b.pdf").read_bytes() == first


def test_depth_figure_of_one_depth_has_points_and_no_law(tmp_path, make_depth_runs):
    make_depth_runs(tmp_path / "x", seeds=2, depths=(6,))
    table = load(tmp_path / "x")
    figure = depth_figure(table.runs, table.probes)
    labels = [t.get_text() for t in figure.axes[0].get_legend().get_texts()]
    assert labels == ["post: 2 networks", "pre: 2 networks"]


def test_growth_per_block_is_drawn_and_labelled_as_such(tmp_path, make_run):
    for depth in (6, 12, 24, 48):
        probe = {"step": 0, "quantity": UP, "axis": "layer"}
        probe["values"] = [math.exp(0.25 * depth)]
        make_run(tmp_path / "x", task="depth", n_layers=depth, probes=[probe])
    table = load(tmp_path / "x")
    axes = depth_figure(table.runs, table.probes).axes[0]
    (label,) = [t.get_text() for t in axes.get_legend().get_texts()]
    assert "$e^{(0.2500)" in label
    (line,) = [line for line in axes.lines if len(line.get_xdata()) == 100]
    np.testing.assert_allclose(
        line.get_ydata(), np.exp(0.25 * np.asarray(line.get_xdata())), rtol=1e-9
    )


def test_depth_figure_leaves_out_and_says_so(tmp_path, make_depth_runs, make_run):
    make_depth_runs(tmp_path / "x", seeds=3, depths=(6, 12))
    broken = [{"step": 0, "quantity": UP, "axis": "layer", "values": [None] * 6}]
    make_run(
        tmp_path / "x",
        task="depth",
        model="ResidualMLP",
        n_layers=6,
        seed=9,
        probes=broken,
    )
    table = load(tmp_path / "x")
    text = caption(depth_figure(table.runs, table.probes))
    assert "pre: 1 runs without a finite, positive value" in text


@pytest.mark.parametrize("draw", [profile_figure, stream_figure])
def test_layer_figures_are_readable(laws, draw):
    figure = draw(laws.runs, laws.probes)
    assert_readable(figure)
    assert "3 seeds per line" in caption(figure)


def test_profile_shows_first_and_last_probed_step(sweep):
    table = sweep(norms=4)
    figure = profile_figure(table.runs, table.probes)
    assert_readable(figure)
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert [title.rsplit(", ")[1] for title in titles] == ["step 0", "step 200"]
    np.testing.assert_allclose(
        figure.axes[0].lines[0].get_ydata(), [0.1, 0.2, 0.3, 0.4]
    )


def test_stream_is_the_root_and_sites_are_parts_of_a_block(tmp_path, make_run):
    values = [1.0, 4.0, 9.0, 16.0]
    probe = {"step": 0, "quantity": "stream_mean_square", "axis": "site"}
    make_run(tmp_path / "x", n_layers=2, probes=[probe | {"values": values}])
    table = load(tmp_path / "x")
    figure = stream_figure(table.runs, table.probes)
    first, second = figure.axes[0].lines  # of the sub-layers of a block
    np.testing.assert_allclose(first.get_xdata(), [0.5, 1.5])
    np.testing.assert_allclose(first.get_ydata(), [1, 3])
    np.testing.assert_allclose(second.get_xdata(), [1, 2])
    np.testing.assert_allclose(second.get_ydata(), [2, 4])
    assert first.get_markerfacecolor() == "white" != second.get_markerfacecolor()
    assert "Hollow: the first sub-layer of a block" in caption(figure)


def test_blocks_of_one_sub_layer_are_one_line(tmp_path, make_run):
    probe = {"step": 0, "quantity": "stream_mean_square", "axis": "site"}
    make_run(tmp_path / "x", n_layers=3, probes=[probe | {"values": [1.0, 4.0, 9.0]}])
    table = load(tmp_path / "x")
    figure = stream_figure(table.runs, table.probes)
    (line,) = figure.axes[0].lines
    np.testing.assert_allclose(line.get_ydata(), [1, 2, 3])
    assert "Hollow" not in caption(figure)


def test_figures_without_data_are_refused(tmp_path, make_run):
    make_run(tmp_path / "x")
    table = load(tmp_path / "x")
    with pytest.raises(ValueError, match="logged a loss"):
        loss_figure(table.runs, table.metrics)
    with pytest.raises(ValueError, match="no completed run recorded grad_norm"):
        depth_figure(table.runs, table.probes, DOWN)
    for draw in (profile_figure, stream_figure):
        with pytest.raises(ValueError, match="no run recorded"):
            draw(table.runs, table.probes)
    for draw in (growth_figure, heatmap_figure):
        with pytest.raises(ValueError, match="no completed run recorded"):
            draw(table.runs, table.probes)
    with pytest.raises(ValueError, match="at two depths"):
        forest_figure(table.runs, table.probes)


def test_many_depths_are_thinned_to_the_ends_and_the_middle():
    assert shown_depths([384, 6, 12, 24, 48, 96, 192, 6]) == [6, 48, 384]
    assert shown_depths([6, 12]) == [6, 12]
    assert shown_depths([4]) == [4]


def test_every_variant_looks_different():
    looks = style.looks([f"v{i}" for i in range(32)])
    assert len({(k.colour, k.marker, str(k.dashes)) for k in looks.values()}) == 32


def test_shortened_labels_stay_apart_and_keep_to_their_width():
    labels = [f"transformers \N{MIDDLE DOT} embedding_std={x}" for x in (0.707, 0.0141)]
    short = [style.shorten(label, 24) for label in labels]
    assert [len(label) for label in short] == [24, 24]
    assert len(set(short)) == 2
    assert style.shorten("pre", 3) == "pre"


def test_an_explosion_does_not_hide_the_other_exponents(
    tmp_path, make_run, make_depth_probes
):
    """A gradient of exp(L / 4) has an exponent of about 11; the axis ends near 0."""
    for norm, growth in (("rmsnorm", 0.0), ("none", 0.25)):
        for depth in (6, 24, 96):
            for seed in range(3):
                probes = make_depth_probes(depth, seed)
                for row in probes:
                    if row["quantity"].startswith("grad_norm"):
                        row["values"] = [
                            x * float(np.exp(growth * depth)) for x in row["values"]
                        ]
                make_run(
                    tmp_path / "x",
                    task="depth",
                    model="M",
                    norm=norm,
                    n_layers=depth,
                    seed=seed,
                    probes=probes,
                )
    table = load(tmp_path / "x")
    figure = forest_figure(table.runs, table.probes)
    assert_readable(figure)
    axes = figure.axes[0]
    assert axes.get_xlim()[1] < 0.5
    arrows = [line for line in axes.lines if line.get_marker() == ">"]
    assert len(arrows) == 2  # W1 and W2
    assert all(line.get_xdata()[0] == axes.get_xlim()[1] for line in arrows)
    assert "Arrows: beyond the axis." in caption(figure)
