import math

import numpy as np
import pytest

from analysis.interaction.design import Contrast
from analysis.interaction.estimates import estimate, of_seeds, parts_of
from analysis.interaction.mixed import mixed_model
from analysis.interaction.result import study_of, summarise_study
from analysis.interaction.verdict import outcome, verdict
from analysis.load import load

PRIMARY = Contrast("H1", ("rmsnorm", "derf"), ("adamw", "muon"), direction=">")
# A pilot of 240 steps in which AdamW trapped the pointwise norm: validation losses.
PILOT = {
    ("rmsnorm", "adamw"): {0: 2.679, 1: 2.724, 2: 2.710},
    ("rmsnorm", "muon"): {0: 2.600, 1: 2.652, 2: 2.606},
    ("derf", "adamw"): {0: 3.744, 1: 4.061, 2: 3.585},
    ("derf", "muon"): {0: 2.698, 1: 2.779, 2: 2.720},
}


def seeds(*values, contrast=PRIMARY):
    return of_seeds(contrast, dict(enumerate(values)))


NOTHING = seeds()


def test_weights_are_the_later_level_minus_the_earlier():
    assert parts_of(PRIMARY) == [
        (1, ("rmsnorm", "adamw")),
        (-1, ("rmsnorm", "muon")),
        (-1, ("derf", "adamw")),
        (1, ("derf", "muon")),
    ]
    gap = Contrast("gap", ("rmsnorm", "derf"), ("muon",))
    assert parts_of(gap) == [(-1, ("rmsnorm", "muon")), (1, ("derf", "muon"))]
    column = Contrast("column", ("derf",), ("adamw", "muon"))
    assert parts_of(column) == [(-1, ("derf", "adamw")), (1, ("derf", "muon"))]


def test_interaction_of_the_pilot():
    found = estimate(PRIMARY, PILOT)
    # By hand: (2.698 - 2.600) - (3.744 - 2.679), and so on.
    assert found.per_seed == pytest.approx({0: -0.967, 1: -1.210, 2: -0.761})
    assert found.interval.mean == pytest.approx(-0.97933, abs=1e-5)
    assert found.interval.sd == pytest.approx(0.2247, abs=1e-4)
    assert found.p_sign_flip == 0.25
    assert found.sign == -1


def test_a_cell_without_runs_is_named():
    found = estimate(PRIMARY, {**PILOT, ("derf", "muon"): {}})
    assert (found.interval.n, found.missing) == (0, ("derf × muon",))  # noqa: RUF001
    status, sentence = verdict(found, NOTHING, NOTHING)
    assert status == "not measured"
    assert "no completed run of derf" in sentence


def test_one_seed_says_nothing_about_a_difference():
    status, sentence = verdict(seeds(5.0), seeds(5.0), seeds(5.0))
    assert status == "one seed"
    assert "nothing can be said about whether the gaps differ" in sentence
    assert "differ (" not in sentence


def test_too_few_seeds_says_how_many_more():
    status, sentence = verdict(seeds(0.1, 0.3, -0.1), NOTHING, NOTHING)
    assert status == "too few seeds"
    # Mean 0.1, SD 0.2: d = 0.5 needs 34 seeds in any table of the paired t test.
    assert "31 more would settle an effect of this size" in sentence


def test_small_enough_is_no_effect_beyond_the_margin():
    contrast = Contrast("H1", PRIMARY.rows, PRIMARY.columns, direction=">", margin=0.05)
    found = seeds(0.001, -0.001, 0.002, -0.002, contrast=contrast)
    assert verdict(found, NOTHING, NOTHING)[0] == "no effect beyond the margin"
    wide = seeds(0.1, -0.1, 0.05, -0.02, contrast=contrast)
    assert verdict(wide, NOTHING, NOTHING)[0] == "too few seeds"


@pytest.mark.parametrize(
    "matched, steps, status",
    [
        ((0.1, 0.2, 0.1), (), "interaction"),
        ((-0.1, -0.2, -0.1), (0.1, 0.2, 0.1), "interaction"),
        ((-0.1, -0.2, -0.1), (-0.1, -0.2, -0.1), "not claimed"),
        ((-0.1, -0.2, -0.1), (), "not claimed"),
        ((), (), "not claimed"),
    ],
)
def test_claimed_only_if_another_scale_agrees_in_sign(matched, steps, status):
    found = verdict(seeds(0.5, 0.6, 0.55), seeds(*matched), seeds(*steps))
    assert found[0] == status


def test_an_agreement_that_is_itself_open_is_said():
    _, sentence = verdict(seeds(0.5, 0.6, 0.55), seeds(0.3, -0.2, 0.2), NOTHING)
    assert "at matched loss, where the interval includes 0" in sentence


def test_the_sign_that_was_not_registered_is_no_success():
    negative = seeds(-0.5, -0.6, -0.55)
    assert verdict(negative, negative, NOTHING)[0] == "interaction of the other sign"


@pytest.mark.parametrize(
    "direction, values, status",
    [
        (">", (0.5, 0.6, 0.55), "held"),
        ("<", (0.5, 0.6, 0.55), "did not hold"),
        (">", (0.5, -0.6, 0.55), "undecided"),
        (">", (0.5,), "undecided"),
        (">", (), "not measured"),
        ("=", (0.001, -0.001, 0.002), "held"),
        ("=", (0.5, 0.6, 0.55), "did not hold"),
        ("=", (0.2, -0.1, 0.05), "undecided"),
        # Beyond 0, but not beyond the margin.
        ("=", (0.04, 0.05, 0.06), "undecided"),
    ],
)
def test_predictions_hold_only_where_the_interval_says_so(direction, values, status):
    prediction = Contrast("P", ("a", "b"), ("c",), direction=direction, margin=0.05)
    assert outcome(prediction, seeds(*values, contrast=prediction))[0] == status


@pytest.fixture
def small(tmp_path, make_study):
    make_study(tmp_path / "x", effect=0.4, seeds=4)
    return summarise_study(study_of(load(tmp_path / "x")))


def test_what_was_put_in_is_found_and_paired(small):
    main = small["rules"]["own"]["primary"]
    found = main["estimate"]
    assert found["low"] < 0.4 < found["high"]
    # Seeds scatter by 0.6, runs by 0.01 and an interaction by twice that.
    assert found["sd"] < 0.06
    cells = {(c["row"], c["column"]): c for c in small["rules"]["own"]["cells"]}
    assert cells["derf", "muon"]["sd"] > 0.5
    assert main["verdict"] == "interaction"
    assert main["gap_ratio"]["low"] < 0.7 / 0.3 < main["gap_ratio"]["high"]
    assert main["matched"]["n"] == 4


def test_no_effect_is_found_where_none_is(tmp_path, make_study):
    make_study(tmp_path / "x", effect=0.0, seeds=4)
    result = summarise_study(study_of(load(tmp_path / "x")))
    assert result["rules"]["own"]["primary"]["verdict"] == "too few seeds"


def test_an_interaction_of_speed_alone_is_not_claimed(tmp_path, make_cell):
    # The gap is 0.3 of the last 3 nats of descent, whichever way they are covered: both
    # columns have the same gap at the same loss, and muon goes further.
    for row, gap in (("rmsnorm", 0.0), ("derf", 0.3)):
        for column, end in (("adamw", 3.0), ("muon", 2.0)):
            for seed in range(3):
                depth = 5 - (end + 0.01 * seed)
                rows = [
                    {
                        "step": t,
                        "val_loss": 5 - depth * (t / 100) * (1 - gap),
                        "loss": 1.0,
                    }
                    for t in range(0, 101, 5)
                ]
                folder = make_cell(tmp_path / "x", row, column, seed, end)
                lines = "".join(f"{r}\n".replace("'", '"') for r in rows)
                (folder / "metrics.jsonl").write_text(lines)
    main = summarise_study(study_of(load(tmp_path / "x")))["rules"]["as run"]["primary"]
    assert main["estimate"]["mean"] == pytest.approx(0.3)
    assert main["matched"]["mean"] == pytest.approx(0, abs=1e-9)
    assert main["log_steps"]["mean"] == pytest.approx(0, abs=1e-9)


@pytest.fixture
def wide(tmp_path, make_wide):
    make_wide(tmp_path / "x", seeds=3)
    return summarise_study(study_of(load(tmp_path / "x")))


def test_secondary_contrasts_are_corrected_together(wide):
    found = {c["contrast"]["id"]: c for c in wide["rules"]["own"]["contrasts"]}
    assert list(found) == ["dyt", "cap", "shape"]
    # The diverged seed of dyt x muon is in neither of its contrasts.
    assert [found[name]["n"] for name in found] == [2, 3, 2]
    assert found["shape"]["mean"] == pytest.approx(0.6, abs=0.05)
    assert found["shape"]["p_holm"] == pytest.approx(3 * found["shape"]["p_t"])


def test_remedies_recover_what_was_put_in(wide):
    first, second = wide["rules"]["shared"]["remedies"]
    # Gaps 0.9, 0.4 and 0.3; interaction 0.6.
    assert first["of_gap"]["value"] == pytest.approx(1 - 0.4 / 0.9, abs=0.03)
    assert first["of_interaction"]["value"] == pytest.approx(0.5 / 0.6, abs=0.1)
    assert second["of_gap"]["value"] == pytest.approx(1 - 0.3 / 0.9, abs=0.05)


def test_predictions_of_every_kind_end_in_an_outcome(wide):
    found = {p["contrast"]["id"]: p["verdict"] for p in wide["predictions"]}
    assert found == {
        "P1": "held",
        "P5": "undecided",
        "P6": "did not hold",
        "P7": "not measured",
    }
    first, *_, last = wide["predictions"]
    # sqrt(1 + 0.3 site growth) at step 100, growth 10 and sqrt(10), times 1, 1.01, 1.02.
    site = np.arange(1, 7)
    rms = [np.sqrt(1 + 0.3 * site * growth).mean() for growth in (10, math.sqrt(10))]
    assert first["mean"] == pytest.approx(1.01 * (rms[0] - rms[1]))
    assert last["reason"] == "no run recorded no/such"


def test_mixed_model_needs_every_row_in_every_column():
    cells = {("a", "c"): {0: 1.0}, ("b", "c"): {0: 1.0}, ("a", "d"): {0: 1.0}}
    assert mixed_model(cells) == {"error": "not every row was measured in every column"}
    whole = cells | {("b", "d"): {0: 1.0}}
    assert "one seed" in mixed_model(whole)["error"]


def test_mixed_model_without_statsmodels_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "statsmodels", None)
    name = "statsmodels.regression.mixed_linear_model"
    monkeypatch.setitem(__import__("sys").modules, name, None)
    assert "blocklab[stats]" in mixed_model(PILOT)["error"]


def test_mixed_model_is_the_analysis_of_variance_of_a_balanced_design():
    pytest.importorskip("statsmodels")
    found = mixed_model(PILOT)
    term = found["terms"][-1]
    # By hand: mean of I_s; 2 sqrt(MS / 3) with the residual mean square after cells and
    # seeds. statsmodels 0.15 gave -0.979333, 0.127264, 0.110214 and 0.057511.
    y = np.array([list(PILOT[cell].values()) for cell in PILOT]).T
    residual = y - y.mean(0) - y.mean(1, keepdims=True) + y.mean()
    square = (residual**2).sum() / 6
    assert term["mean"] == pytest.approx(-0.979333, abs=1e-6)
    assert term["se"] == pytest.approx(2 * math.sqrt(square / 3), rel=1e-5)
    assert term["se"] == pytest.approx(0.127264, abs=2e-6)
    assert found["sd_residual"] == pytest.approx(0.110214, abs=2e-6)
    assert found["sd_seed"] == pytest.approx(0.057511, abs=1e-5)
