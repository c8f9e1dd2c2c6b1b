import dataclasses

import numpy as np
import pytest

from analysis.interaction.figures import study_figures
from analysis.interaction.result import study_of
from analysis.load import load
from analysis.plots.gain_gap import gain_gap_figure
from analysis.plots.interaction import interaction_figure
from analysis.plots.rates import rates_figure
from analysis.plots.site_depth import shown_steps, site_depth_figure
from analysis.plots.site_maps import site_map_figure
from analysis.plots.spectra import exponent, spectra_figure
from tests.analysis.test_plots import assert_readable, caption, texts


@pytest.fixture
def wide(tmp_path, make_wide):
    make_wide(tmp_path / "x", seeds=3)
    return study_of(load(tmp_path / "x"))


def test_every_figure_is_made_and_readable(wide):
    figures = study_figures(wide)
    assert set(figures) == {
        "interaction",
        "interaction_contrasts",
        "interaction_gap",
        "interaction_rates",
        "interaction_dose_alpha",
        "interaction_dose_spectral_cap",
        "interaction_gain_gap",
        "interaction_sat99",
        "interaction_gain_eff",
        "interaction_lin_cos",
        "interaction_x_rms",
        "interaction_spectra_rmsnorm",
        "interaction_spectra_derf",
    }
    for figure in figures.values():
        assert_readable(figure)


def test_figures_without_data_are_left_out(tmp_path, make_study):
    make_study(tmp_path / "x", seeds=1)
    study = study_of(load(tmp_path / "x"))
    found = study_figures(study)
    names = {"", "_contrasts", "_gap", "_rates"}
    assert set(found) == {f"interaction{name}" for name in names}
    for figure in found.values():
        assert_readable(figure)
    with pytest.raises(ValueError, match="no cell has site/sat99"):
        site_map_figure(study, "sat99")
    with pytest.raises(ValueError, match="no cell of the primary"):
        site_depth_figure(study)
    with pytest.raises(ValueError, match="recorded spectral norms"):
        spectra_figure(study, "derf")
    with pytest.raises(ValueError, match="no cell has site/gain_eff"):
        gain_gap_figure(study)


def test_heat_map_shows_the_final_norm_as_the_last_site(wide):
    figure = site_map_figure(wide, "gain_eff")
    image = figure.axes[0].images[0]
    values = np.asarray(image.get_array())
    # derf x adamw; growth = step^0.25; site 1 first, the final norm last.
    assert values.shape == (7, 8)
    growth = 100**0.25
    assert values[0, -1] == pytest.approx(1 / (1 + 0.1 * growth))
    assert values[-1, -1] == pytest.approx(0.5 / (1 + 0.1 * growth))


def test_exponent_is_that_of_the_late_growth():
    steps = np.array([1.0, 2, 4, 8, 16, 32, 64, 100])
    broken = np.where(steps < 10, steps**2, 100 * steps**0.5)
    assert exponent(steps, broken) == pytest.approx(0.5)
    assert np.isnan(exponent(np.array([1.0, 100]), np.array([1.0, 2])))


def test_spectral_norms_state_the_exponent_that_was_put_in(wide):
    figure = spectra_figure(wide, "derf")
    drawn = [text for text, _ in texts(figure)]
    for power in (0.25, 0.5, 0.1):
        assert drawn.count(f"$p = {power:.2f}$") == 4


def test_diverged_rates_have_a_cross_and_the_chosen_one_a_ring(wide):
    figure = rates_figure(wide)
    left = figure.axes[0]
    lost = [line for line in left.lines if line.get_gid() == "lost"]
    # All rows but the baseline diverged at 0.01 under adamw.
    assert [line.get_xdata()[0] for line in lost] == [0.01] * 4
    rings = [line for line in left.lines if line.get_markersize() == 11]
    assert sorted(line.get_xdata()[0] for line in rings) == [1e-4] + [1e-3] * 4
    assert "seed 100" in caption(figure)


def test_steps_shown_have_the_first_and_the_last():
    assert shown_steps([1, 2, 4, 8, 16, 32, 64, 100]) == [1, 4, 16, 32, 100]
    assert shown_steps([0]) == [0]


def test_one_curve_is_compared_with_its_rivals(wide):
    figure = gain_gap_figure(wide)
    (words,) = [
        t.get_text() for t in figure.texts if "Rank correlation" in t.get_text()
    ]
    # The fixture's gap and gain both follow its growth; elasticity is not recorded.
    assert "gain_eff \N{MINUS SIGN}" in words.replace("\n", " ")
    assert "lin_cos" in words
    assert "elasticity" not in words


def test_every_row_that_is_drawn_is_in_the_legend(tmp_path, make_study, make_cell):
    make_study(tmp_path / "x", seeds=2)
    study = study_of(load(tmp_path / "x"))
    study.runs["shared"] = {
        cell: seeds
        for cell, seeds in study.runs[study.rules[0]].items()
        if cell[0] == study.design.primary.rows[0]
    }
    study = dataclasses.replace(study, rules=(*study.rules[:1], "shared"))
    (legend,) = [
        a.get_legend() for a in interaction_figure(study).axes if a.get_legend()
    ]
    assert [t.get_text() for t in legend.get_texts()] == ["rmsnorm", "derf"]
