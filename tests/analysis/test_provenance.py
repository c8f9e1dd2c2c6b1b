import json

import pytest

from analysis.__main__ import main
from analysis.load import load
from analysis.losses import final_losses
from analysis.provenance import mixed_lines
from analysis.report import write_report

A, B = "aaaaaaaa" * 5, "bbbbbbbb" * 5


@pytest.fixture
def sweep(tmp_path, make_run):
    """Adds runs to a folder, each with a fingerprint and a revision of its own."""
    home = tmp_path / "x"

    def add(fingerprint, revision, **keywords):
        rows = [{"step": 100, "loss": 2.0, "val_loss": 2.0}]
        folder = make_run(home, metrics=rows, **keywords)
        env = json.loads((folder / "env.json").read_text())
        env["data"]["fingerprint"] = fingerprint
        env["code"] = revision
        env["git"] = {"revision": revision and "c" * 40}  # the docs were changed, say
        (folder / "env.json").write_text(json.dumps(env))
        return home

    return add


def labels(home):
    return load(home).runs["variant"].to_list()


# A data source without a seed, as most are.
TEXT = {"config_extra": {"data": {"_target_": "experiments.data.stdlib.Stdlib"}}}


def test_two_data_of_one_config_are_not_one_variant(sweep):
    home = sweep(A, A, seed=0, **TEXT)
    sweep(A, A, seed=1, **TEXT)
    assert len(set(labels(home))) == 1
    sweep(B, A, seed=2, **TEXT)  # another seed, which does not explain it
    assert labels(home) == [
        "layernorm · pre · fingerprint=aaaaaaaa",
        "layernorm · pre · fingerprint=aaaaaaaa",
        "layernorm · pre · fingerprint=bbbbbbbb",
    ]


def test_data_that_are_made_from_the_seed_stay_one_variant(sweep):
    home = sweep(A, A, seed=0)  # data.seed is the seed
    sweep(B, A, seed=1)
    assert labels(home) == ["layernorm · pre"] * 2
    assert mixed_lines(load(home).runs) == []


def test_two_codes_are_not_one_variant_and_no_law_over_depths(sweep):
    home = sweep(A, A, seed=0, **TEXT)
    sweep(A, B, seed=1, **TEXT)
    for n_layers, revision in ((6, A), (12, B)):
        sweep(A, revision, task="depth", n_layers=n_layers, **TEXT)
    assert labels(home) == [
        f"layernorm · pre · code={revision[:8]}" for revision in (A, B, A, B)
    ]


def test_only_the_variant_that_is_mixed_is_split(sweep):
    home = sweep(A, A, seed=0, norm="derf", **TEXT)
    sweep(A, A, seed=0, norm="rmsnorm", **TEXT)
    sweep(A, B, seed=1, norm="rmsnorm", **TEXT)
    assert labels(home) == [
        "derf",
        "rmsnorm · code=aaaaaaaa",
        "rmsnorm · code=bbbbbbbb",
    ]


def test_what_is_said_already_is_not_said_twice(sweep):
    home = sweep(A, A, seed=0, **TEXT)
    sweep(B, A, seed=0, **TEXT)  # at one seed: in the label of the variant anyway
    assert labels(home) == ["fingerprint=aaaaaaaa", "fingerprint=bbbbbbbb"]


def test_a_run_that_does_not_know_its_origin_says_nothing_about_it(sweep):
    home = sweep(A, A, seed=0, **TEXT)
    sweep(None, None, seed=1, **TEXT)
    assert labels(home) == ["layernorm · pre"] * 2


def test_lines_count_the_runs_of_each(sweep):
    home = sweep(A, A, seed=0, **TEXT)
    sweep(A, A, seed=1, **TEXT)
    assert mixed_lines(load(home).runs) == []
    sweep(B, B, seed=2, **TEXT)
    data, code = mixed_lines(load(home).runs)
    assert data.startswith("2 data fingerprints: aaaaaaaa (2 runs), bbbbbbbb (1 run)")
    assert code.startswith("2 code versions: aaaaaaaa (2 runs), bbbbbbbb (1 run)")


def test_another_data_config_is_another_data_on_purpose(sweep):
    home = sweep(A, A, **TEXT)
    markov = {"data": {"_target_": "experiments.data.markov.Markov"}}
    sweep(B, A, config_extra=markov)
    assert mixed_lines(load(home).runs) == []


def test_the_report_averages_each_by_itself(sweep):
    home = sweep(A, A, seed=0, **TEXT)
    sweep(A, B, seed=1, **TEXT)
    table = load(home)
    assert final_losses(table.runs, table.metrics)["variant"].n_unique() == 2
    summary = write_report(home).summary
    assert [row["n"] for row in summary["families"][0]["losses"]] == [1, 1]
    (line,) = summary["mixed"]
    assert line in (home / "report" / "index.html").read_text()


def test_losses_of_other_code_have_no_paired_difference(sweep):
    home = sweep(A, A, seed=0, norm="derf", **TEXT)
    sweep(A, A, seed=0, norm="layernorm", **TEXT)
    sweep(A, B, seed=0, norm="rmsnorm", **TEXT)
    losses = write_report(home).summary["families"][0]["losses"]
    paired = {row["variant"]: row["to_best"] is not None for row in losses}
    assert paired == {"derf": False, "layernorm": True, "rmsnorm": False}


def test_the_terminal_says_what_is_mixed(sweep, capsys):
    home = sweep(A, A, seed=0, **TEXT)
    sweep(A, B, seed=1, **TEXT)
    assert main(["report", str(home)]) == 0
    assert (
        "2 code versions: aaaaaaaa (1 run), bbbbbbbb (1 run)" in capsys.readouterr().out
    )
