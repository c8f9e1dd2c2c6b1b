import json

import pytest

from analysis.__main__ import main
from analysis.interaction.figures import study_figures
from analysis.interaction.result import study_of, summarise_study
from analysis.interaction.section import blocks
from analysis.load import load
from analysis.report import write_report
from tests.analysis.test_report import read


def text_of(found):
    cells = [str(c) for b in found for row in b.rows for c in row]
    return "\n".join([*(b.text for b in found), *cells])


def test_section_can_be_followed_alone(tmp_path, make_wide):
    make_wide(tmp_path / "x", seeds=3)
    text = text_of(blocks(summarise_study(study_of(load(tmp_path / "x")))))
    for said in (
        "Derf at alpha 0.5 loses more with Muon than with AdamW",
        "Registered: all 93 runs carry it",
        "norm=derf, model.norm.alpha_init=0.3",
        "own rates: each cell at its best rate",
        "shared rates: every row at the best rate of the baseline row",
        "(a) I at matched loss",
        "(b) I of ln(steps)",
        "0.250 (≥ 0.25)",
        "Holm over 3 contrasts",
        "0.0001 (edge of the grid)",
        "The best rate lies at the edge of the grid for derf",
        "diverged at step 40",
        "0.01: diverged",
        "no run recorded no/such",
        "statsmodels",
    ):
        assert said in text


def test_equal_rates_are_told_once(tmp_path, make_study):
    make_study(tmp_path / "x", seeds=2)
    found = blocks(summarise_study(study_of(load(tmp_path / "x"))))
    assert "The same runs as under own rates." in [b.text for b in found]
    assert sum("mean val_loss" in b.heads for b in found) == 1


def test_report_has_the_section_the_figures_and_the_numbers(tmp_path, make_study):
    make_study(tmp_path / "x", seeds=2)
    report = write_report(tmp_path / "x")
    summary, parsed = read(tmp_path / "x")
    assert all(address.startswith("data:") for address in parsed.addresses)
    page = report.page.read_text()
    assert page.index("<h2>Interaction</h2>") < page.index("train/LanguageModel")
    assert 'alt="interaction contrasts"' in page
    assert {"interaction.png", "interaction_gap.png", "loss.png"} <= {
        path.name for path in report.figures
    }
    main = summary["interaction"]["rules"]["own"]["primary"]
    assert main["estimate"]["mean"] == pytest.approx(0.4, abs=0.05)


def test_a_study_that_has_only_been_tuned_says_so(tmp_path, make_study):
    make_study(tmp_path / "x", seeds=0)
    study = study_of(load(tmp_path / "x"))
    text = text_of(blocks(summarise_study(study)))
    assert "No measuring run completed yet." in text
    assert "Rates are chosen on seed 100" in text
    assert list(study_figures(study)) == ["interaction_rates"]


@pytest.mark.parametrize("design", [{"rows": {"key": "norm"}}, "normalizer"])
def test_a_faulty_design_is_a_line_of_the_report(tmp_path, make_cell, design):
    make_cell(tmp_path / "x", "derf", "muon", 0, 2.0, design=design)
    report = write_report(tmp_path / "x")
    assert "tags.design: " in report.page.read_text()
    assert report.summary["interaction"]["error"].startswith("tags.design: ")


def test_folders_without_a_design_have_no_section(tmp_path, make_run):
    make_run(tmp_path / "x", metrics=[{"step": 1, "loss": 2.0, "val_loss": 2.0}])
    report = write_report(tmp_path / "x")
    assert report.summary["interaction"] is None
    assert "<h2>Interaction</h2>" not in report.page.read_text()


def test_command_prints_tables_or_json_and_writes_figures(tmp_path, make_study, capsys):
    home = tmp_path / "x"
    make_study(home, seeds=2, design=None)
    axes = ["--rows", "norm=rmsnorm,derf", "--columns", "optimizer"]
    tune = ["--tune-seeds", "100"]
    assert main(["interaction", str(home), *axes, *tune]) == 0
    assert "Not registered" in capsys.readouterr().out
    folder = tmp_path / "figures"
    arguments = [*axes, *tune, "--json", "--figures", str(folder)]
    assert main(["interaction", str(home), *arguments]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["design"]["is_registered"] is False
    assert (folder / "interaction_gap.pdf").is_file()
    keep = ["--keep", "norm=derf"]
    assert main(["interaction", str(home), *axes, *keep]) == 2
    assert "no run has norm=rmsnorm" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--rows", "norm"], "both --rows and --columns"),
        ([], "holds no design"),
        (["--rows", "norm", "--columns", "zzz"], "no choice and no config key"),
        (["--keep", "norm"], "--keep takes KEY=VALUE"),
        (["--keep", "norm=dyt"], "no run has norm=dyt"),
        (["--tune-seeds", "x"], "takes whole numbers, got 'x'"),
    ],
)
def test_what_is_wrong_is_one_line(tmp_path, make_cell, capsys, arguments, message):
    make_cell(tmp_path / "x", "derf", "muon", 0, 2.0, design=None)
    assert main(["interaction", str(tmp_path / "x"), *arguments]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
