import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from analysis import report as report_module
from analysis.__main__ import main
from analysis.errors import AnalysisError
from analysis.laws.power import finite_grid_exponent
from analysis.report import write_report
from analysis.text import number, with_interval

ROOT = Path(__file__).parents[2]
EXPECTED = {
    "id": "A1",
    "variant": {"placement": "pre"},
    "quantity": "ffn/up/kernel last",
    "fit": "power",
    "expected": -0.47,
    "tolerance": 0.1,
    "source": "a & b",
}


class Page(HTMLParser):
    """Collects text, and every address that the page would fetch."""

    def __init__(self, text):
        super().__init__()
        self.text, self.addresses, self.open = "", [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)
        self.addresses += [v for k, v in attributes if k in ("src", "href", "srcset")]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data + "\n"


def read(home):
    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    text = (home / "report" / "summary.json").read_text()
    page = Page((home / "report" / "index.html").read_text())
    assert page.open == []
    return json.loads(text, parse_constant=refuse), page


@pytest.fixture
def losses(tmp_path, make_run, make_losses):
    """derf ends 0.1 below layernorm; one run diverged, one failed, one goes on."""
    home = tmp_path / "norms"
    tags = {"question": "Which norm <ends> lower?"}
    for norm, end in (("layernorm", 2.0), ("derf", 1.9)):
        for seed in range(3):
            rows = [{"step": 100, "loss": end, "val_loss": end + 0.01 * seed}]
            make_run(home, norm=norm, seed=seed, metrics=rows, tags=tags)
    rows = make_losses(5, 2, 0, stop=40)
    make_run(home, seed=3, state="diverged", diverged_step=40, metrics=rows)
    error = "ValueError: alpha_init must be <positive>"
    make_run(home, seed=4, norm="derf", state="failed", error=error)
    make_run(home, seed=5, norm="derf", state="running", metrics=rows[:5])
    return home


def test_training_report_states_losses_differences_and_what_went_wrong(losses):
    report = write_report(losses)
    summary, page = read(losses)
    assert summary["states"] == {
        "completed": 6,
        "running": 1,
        "diverged": 1,
        "failed": 1,
    }
    (family,) = summary["families"]
    best, other = family["losses"]
    assert [best["variant"], other["variant"]] == ["derf", "layernorm"]
    # 1.90, 1.91, 1.92: SD 0.01, t_{2, 0.975} = 4.302653, over sqrt(3).
    assert best["mean"] == pytest.approx(1.91)
    assert best["half_width"] == pytest.approx(0.0248414, rel=1e-5)
    assert best["bits_per_byte"] == pytest.approx(1.91 / 0.69314718, rel=1e-6)
    assert best["to_best"] is None
    # Paired by seed the difference does not scatter at all.
    assert other["to_best"]["mean"] == pytest.approx(0.1)
    assert other["to_best"]["half_width"] == pytest.approx(0, abs=1e-12)
    variants = {v["variant"]: v for v in family["variants"]}
    assert variants["layernorm"]["diverged"][0]["diverged_step"] == 40
    assert variants["derf"]["failed"][0]["error"].endswith("<positive>")

    assert "Which norm <ends> lower?" in page.text
    assert "3 of 9 runs did not complete" in page.text
    assert "seed 3 diverged at step 40" in page.text
    assert "alpha_init must be <positive>" in page.text
    assert "1.910 ± 0.025" in page.text
    assert [path.name for path in report.figures] == ["loss.png"]


def test_page_fetches_nothing(losses):
    write_report(losses)
    _, page = read(losses)
    assert page.addresses
    assert all(a.startswith("data:image/png;base64,") for a in page.addresses)
    text = (losses / "report" / "index.html").read_text()
    assert not re.search(r"https?://|@import|url\(", text)


def test_depth_report_states_law_theory_and_verdict(tmp_path, make_depth_runs):
    home = tmp_path / "xiong"
    make_depth_runs(home, seeds=4, depths=(6, 24, 96), tags={"expected": [EXPECTED]})
    report = write_report(home)
    summary, page = read(home)
    laws = {(r["variant"], r["name"]): r for r in summary["families"][0]["laws"]}
    assert set(laws) == {
        (variant, name)
        for variant in ("pre", "post")
        for name in ("W1 last", "W2 last", "W1 first")
    }
    pre, post = laws["pre", "W1 last"], laws["post", "W1 last"]
    # -1/2 ln(1 + L) over 6, 24, 96 has slope -0.474; s0^2 and v scatter by 2 %.
    assert pre["theory"]["exponent"] == pytest.approx(-0.474, abs=0.003)
    assert pre["theory"]["asymptote"] == -0.5
    assert pre["theory"]["s0_square"] == pytest.approx(1, abs=0.05)
    assert pre["theory"]["v"] == pytest.approx(1, abs=0.05)
    assert abs(pre["exponent"]["mean"] + 0.474) < 3 * pre["exponent"]["half_width"]
    assert (pre["kind"], pre["exponent"]["n"]) == ("power", 4)
    assert (post["kind"], post["theory"]["shape"]) == ("flat", "flat")
    assert laws["pre", "W1 first"]["theory"] is None
    (outcome,) = summary["expected"]
    assert outcome["verdict"] == "confirmed"
    for text in ("confirmed", "a & b", "theory, L → ∞", "Expected and measured"):
        assert text in page.text
    assert [path.name for path in report.figures] == [
        "depth_ffn_up_last.png",
        "depth_ffn_down_last.png",
        "depth_ffn_up_first.png",
        "exponents.png",
        "profile_ffn_up.png",
        "stream.png",
        "blocks_ffn_up.png",
        "growth.png",
    ]
    # One font format that keeps text as text, and no bitmap of a letter.
    pdf = (home / "report" / "figures" / "growth.pdf").read_bytes()
    assert pdf.startswith(b"%PDF")
    assert b"/Type3" not in pdf
    assert b"/CIDFontType2" in pdf
    (profile,) = [
        p for p in summary["families"][0]["profiles"] if p["variant"] == "pre"
    ]
    # -1/2 ln(1 + l) on ln l from block 2 to 96; noise of 0.08 on every block.
    exponent = finite_grid_exponent(range(2, 97), 1.0)
    assert profile["depth"] == 96
    assert abs(profile["exponent"]["mean"] - exponent) < 0.015
    assert pre["linear"]["agrees_with_measured"] is True
    assert post["linear"]["agrees_with_measured"] is None
    assert "Gradient over the blocks" in page.text
    assert all(p.read_bytes().startswith(b"\x89PNG") for p in report.figures)
    assert summary["figures"] == [f"figures/{p.name}" for p in report.figures]


@pytest.fixture
def no_figures(monkeypatch):
    """Drawing takes seconds and has tests of its own."""
    monkeypatch.setattr(report_module, "figures_of", lambda *_: {})


@pytest.mark.usefixtures("no_figures")
def test_one_seed_and_one_depth_are_reported_as_what_they_are(
    tmp_path, make_depth_runs, make_run
):
    make_depth_runs(tmp_path / "a", seeds=1, depths=(6, 24))
    make_depth_runs(tmp_path / "b", seeds=2, depths=(6,))
    write_report(tmp_path / "a")
    summary, page = read(tmp_path / "a")
    law = summary["families"][0]["laws"][0]
    assert law["exponent"]["half_width"] is None
    assert law["exponent"]["n"] == 1
    assert "one seed: no interval" in page.text
    write_report(tmp_path / "b")
    summary, page = read(tmp_path / "b")
    assert summary["families"][0]["laws"][0]["error"] == "one depth only: no law"
    assert "one depth only" in page.text


def test_two_families_in_one_folder_are_kept_apart(
    tmp_path, make_run, make_losses, make_depth_runs
):
    make_depth_runs(tmp_path / "x", seeds=2, depths=(6, 12))
    for seed in range(2):
        make_run(tmp_path / "x", seed=seed, metrics=make_losses(5, 2, seed))
    report = write_report(tmp_path / "x")
    summary, _ = read(tmp_path / "x")
    assert {f["family"] for f in summary["families"]} == {
        "depth/ResidualMLP",
        "train/LanguageModel",
    }
    names = {path.name for path in report.figures}
    assert {"train_LanguageModel_loss.png", "depth_ResidualMLP_stream.png"} <= names


def test_only_failed_runs_still_make_a_page(tmp_path, make_run):
    make_run(tmp_path / "x", state="failed", error="ValueError: no")
    report = write_report(tmp_path / "x")
    _, page = read(tmp_path / "x")
    assert report.figures == []
    assert "1 of 1 run did not complete" in page.text
    assert "ValueError: no" in page.text


def test_crash_leaves_the_old_report_and_nothing_else(losses, monkeypatch):
    write_report(losses)
    before = (losses / "report" / "index.html").read_bytes()
    # A cache appears as soon as the files of the runs are no longer young.
    listing = sorted(p.name for p in losses.iterdir() if p.name != ".cache")

    def crash(*_):
        raise RuntimeError("power cut")

    monkeypatch.setattr(report_module, "render", crash)
    with pytest.raises(RuntimeError, match="power cut"):
        write_report(losses)
    assert (losses / "report" / "index.html").read_bytes() == before
    after = sorted(p.name for p in losses.iterdir() if p.name != ".cache")
    assert after == listing


def test_second_report_replaces_the_first_whole(losses):
    write_report(losses)
    (losses / "report" / "figures" / "old.png").write_bytes(b"")
    write_report(losses)
    figures = [p.name for p in (losses / "report" / "figures").iterdir()]
    assert sorted(figures) == ["loss.pdf", "loss.png"]
    assert not [p for p in losses.iterdir() if p.name.startswith(".report")]


def test_a_folder_in_the_way_is_not_deleted(losses):
    (losses / "report").mkdir()
    (losses / "report" / "thesis.tex").write_text("mine")
    with pytest.raises(AnalysisError, match="is not a report; move it"):
        write_report(losses)
    assert (losses / "report" / "thesis.tex").read_text() == "mine"


def test_command_prints_the_summary_and_whole_paths(losses, capsys):
    assert main(["report", str(losses)]) == 0
    out = capsys.readouterr().out
    assert "9 runs: 6 completed, 1 running, 1 diverged, 1 failed." in out
    assert "1.910 ± 0.025" in out
    assert "final val_loss [nats/token]" in out
    assert str(losses / "report" / "figures" / "loss.png") in out.split("\n")
    assert main(["report", str(losses), "--strict"]) == 3


@pytest.mark.usefixtures("no_figures")
def test_strict_is_content_with_confirmed_and_completed(tmp_path, make_depth_runs):
    home = tmp_path / "x"
    tags = {"expected": [EXPECTED]}
    make_depth_runs(home, seeds=3, depths=(6, 24), sigma=0.01, tags=tags)
    assert main(["report", str(home), "--strict"]) == 0
    tags = {"expected": [EXPECTED | {"expected": 0.5}]}
    make_depth_runs(tmp_path / "y", seeds=3, depths=(6, 24), sigma=0.01, tags=tags)
    assert main(["report", str(tmp_path / "y"), "--strict"]) == 3


def test_wrong_folder_is_one_line_and_exit_2(tmp_path, capsys):
    assert main(["report", str(tmp_path / "nope")]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("analysis: ")
    assert captured.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_command_line_helps_and_corrects(capsys):
    assert main([]) == 0
    assert "report" in capsys.readouterr().out
    assert main(["reprot", "x"]) == 2
    assert "did you mean 'report'?" in capsys.readouterr().err
    assert main(["zzz"]) == 2
    assert "one of report" in capsys.readouterr().err


def test_help_does_not_wait_for_polars_or_matplotlib():
    code = (
        "import sys, analysis.__main__ as m\n"
        "try: m.main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'polars', 'matplotlib', 'rich', 'scipy', 'numpy', 'jax'}\n"
        "sys.exit(len(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True)
    assert done.returncode == 0, done.stderr


def test_analysis_needs_neither_jax_nor_the_code_that_made_the_runs():
    code = (
        "import sys, analysis.report, analysis.terminal\n"
        "found = {'jax', 'flax', 'blocks', 'experiments', 'matplotlib.pyplot'}\n"
        "sys.exit(len(found & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True)
    assert done.returncode == 0, done.stderr


def test_half_width_decides_the_decimals():
    assert with_interval(-0.47623, 0.00772) == "-0.4762 ± 0.0077"
    assert with_interval(2.4, 0.12) == "2.40 ± 0.12"
    assert with_interval(123.4, 25.0) == "123 ± 25"
    assert with_interval(-0.0001, 0.012) == "0.000 ± 0.012"
    assert with_interval(1.5, 0.0) == "1.500 ± 0"
    assert with_interval(1.5, float("nan")) == "1.500"
    assert number(None) == number(float("nan")) == "n/a"


def test_a_norm_over_the_batch_is_labelled_where_tokens_are_predicted(
    tmp_path, make_run, make_losses
):
    home = tmp_path / "leak"
    home.mkdir()
    for norm, mixing in (
        ("batchnorm", ["blocks/layers/attn/in_norm"]),
        ("rmsnorm", []),
    ):
        folder = make_run(home, norm=norm, metrics=make_losses(3.0, 2.0, 0))
        env = json.loads((folder / "env.json").read_text())
        (folder / "env.json").write_text(json.dumps({**env, "mixes_tokens": mixing}))
    write_report(home)
    summary, page = read(home)
    leaks = {
        v["variant"]: v["leaks_through"] for v in summary["families"][0]["variants"]
    }
    assert leaks == {"batchnorm": "blocks/layers/attn/in_norm", "rmsnorm": None}
    label = "tokens meet in blocks/layers/attn/in_norm: while it trains"
    assert page.text.count(label) == 1
