import json

import pytest

from analysis.errors import AnalysisError
from analysis.interaction.origin import from_axes, registered
from analysis.interaction.parse import parse
from analysis.interaction.result import study_of
from analysis.interaction.tuning import mistuned
from analysis.load import load


def test_runs_are_sorted_by_cell_seed_and_rule(tmp_path, make_study):
    make_study(tmp_path / "x", seeds=2)
    study = study_of(load(tmp_path / "x"))
    assert study.rules == ("own", "shared")
    assert study.cells == [
        (row, column) for row in ("rmsnorm", "derf") for column in ("adamw", "muon")
    ]
    for rule in study.rules:
        assert all(list(seeds) == [0, 1] for seeds in study.runs[rule].values())
    assert study.left_out == []
    assert study.registered_in == study.table.runs.height == 8 + 12


def test_tuning_seeds_choose_and_are_in_no_mean(tmp_path, make_study):
    make_study(tmp_path / "x", seeds=2)
    study = study_of(load(tmp_path / "x"))
    assert study.tuning.own["derf", "muon"] == 0.02
    assert study.tuning.shared == {"adamw": 1e-3, "muon": 0.02}
    assert study.tuning.at_edge == ()
    used = {r for of in study.runs.values() for m in of.values() for r in m.values()}
    seeds = dict(study.table.runs.select("run_id", "seed").rows())
    assert {seeds[run] for run in used} == {0, 1}


def test_own_and_shared_rates_part_where_a_row_wants_another(tmp_path, make_wide):
    make_wide(tmp_path / "x", seeds=2)
    study = study_of(load(tmp_path / "x"))
    rates = dict(
        study.table.runs.select("run_id", "config.optimizer.learning_rate").rows()
    )
    cell = ("derf", "adamw")
    assert {rates[r] for r in study.runs["own"][cell].values()} == {1e-4}
    assert {rates[r] for r in study.runs["shared"][cell].values()} == {1e-3}
    assert study.tuning.at_edge == (cell,)


def test_an_edge_beyond_which_runs_diverge_is_still_inside_the_grid(
    tmp_path, make_wide
):
    make_wide(tmp_path / "x", seeds=1)
    study = study_of(load(tmp_path / "x"))
    # derf under muon: 0.01 diverged, 0.02 chosen, 0.04 worse.
    assert study.tuning.own["derf", "muon"] == 0.02
    assert ("derf", "muon") not in study.tuning.at_edge


def test_the_level_that_asks_for_more_wins(tmp_path, make_wide):
    make_wide(tmp_path / "x", seeds=1)
    study = study_of(load(tmp_path / "x"))
    names = {cell: next(iter(m.values())) for cell, m in study.runs["own"].items()}
    alphas = dict(
        study.table.runs.select("run_id", "config.model.norm.alpha_init").rows()
    )
    assert alphas[names["derf_0.3", "muon"]] == 0.3
    assert alphas[names["derf", "muon"]] == 0.5


def test_a_diverged_run_is_left_out_and_named(tmp_path, make_wide):
    make_wide(tmp_path / "x", seeds=3)
    study = study_of(load(tmp_path / "x"))
    (lost,) = study.left_out
    assert (lost["row"], lost["column"], lost["seed"]) == ("dyt", "muon", 2)
    assert lost["reason"] == "diverged at step 40"
    assert sorted(study.runs["own"]["dyt", "muon"]) == [0, 1]


def test_a_rate_nobody_chose_is_left_out(tmp_path, make_study, make_cell):
    make_study(tmp_path / "x", seeds=2)
    make_cell(tmp_path / "x", "derf", "muon", 0, 2.0, rate=0.5)
    (lost,) = study_of(load(tmp_path / "x")).left_out
    assert lost["reason"] == "at no chosen learning rate"


def test_tags_of_a_run_go_before_what_is_derived(tmp_path, make_cell):
    home = tmp_path / "x"
    for row in ("rmsnorm", "derf"):
        for column in ("adamw", "muon"):
            tags = {"phase": "measure", "rates": ["shared", "own"]}
            make_cell(home, row, column, 100, 2.0, tags=tags)
    tags = {"cell": {"normalizer": "derf"}, "phase": "measure", "rates": "own"}
    make_cell(home, "rmsnorm", "muon", 3, 2.0, tags=tags)
    study = study_of(load(home))
    # The seed of tuning, but the tag says measure.
    assert sorted(study.runs["own"]["derf", "muon"]) == [3, 100]
    assert list(study.runs["shared"]["derf", "muon"]) == [100]
    assert study.tuning is None


def test_two_runs_for_one_place_are_refused_with_what_differs(tmp_path, make_cell):
    for rate in (0.01, 0.02):
        make_cell(tmp_path / "x", "rmsnorm", "muon", 0, 2.0, rate=rate)
    with pytest.raises(AnalysisError, match=r"differ in optimizer\.learning_rate"):
        study_of(load(tmp_path / "x"))


def test_axes_can_be_named_afterwards(tmp_path, make_study):
    make_study(tmp_path / "x", seeds=2, design=None)
    table = load(tmp_path / "x")
    study = study_of(table, "norm=rmsnorm,derf", "optimizer", (100,))
    assert study.design.columns.labels == ("adamw", "muon")
    assert not study.design.is_registered
    assert study.rules == ("own", "shared")
    # A config path does as well, and its levels are sorted as numbers.
    design = from_axes(table, "norm", "optimizer.learning_rate")
    assert design.rows.labels == ("derf", "rmsnorm")
    labels = ("0.0001", "0.001", "0.01", "0.02", "0.04")
    assert design.columns.labels == labels
    with pytest.raises(AnalysisError, match="no choice and no config key"):
        from_axes(table, "nrom", "optimizer")
    with pytest.raises(AnalysisError, match="no run has norm=dyt; derf, rmsnorm"):
        from_axes(table, "norm=rmsnorm,dyt", "optimizer")
    with pytest.raises(AnalysisError, match="two levels or more, got pre"):
        from_axes(table, "placement", "optimizer")


def test_a_hypothesis_that_changed_is_said(tmp_path, make_study, make_cell):
    make_study(tmp_path / "x", seeds=1)
    folder = make_cell(tmp_path / "x", "derf", "muon", 5, 2.0)
    config = json.loads((folder / "config.json").read_text())
    config["tags"]["design"]["primary"]["direction"] = "<"
    (folder / "config.json").write_text(json.dumps(config))
    status = json.loads((folder / "status.json").read_text())
    (folder / "status.json").write_text(json.dumps(status | {"updated": 2e9}))
    design, notes, carried = registered(load(tmp_path / "x"))
    assert design.primary.direction == "<"
    assert carried == 1
    (note,) = notes
    assert "16 of 17 runs carry another version" in note
    assert "16 of them another primary hypothesis" in note


def test_a_folder_without_a_design_says_what_to_do(tmp_path, make_run):
    make_run(tmp_path / "x")
    with pytest.raises(AnalysisError, match="give --rows and --columns"):
        study_of(load(tmp_path / "x"))


def test_a_level_without_a_key_is_told_by_the_tag_alone(tmp_path, make_cell):
    levels = {"levels": ["small", "large"], "name": "size"}
    node = {
        "rows": levels,
        "columns": {"key": "optimizer", "levels": ["adamw", "muon"]},
    }
    assert parse(node).rows.levels[0].wanted == {}
    for size in ("small", "large"):
        tags = {"design": node, "cell": {"size": size}}
        make_cell(tmp_path / "x", "rmsnorm", "muon", 0, 2.0, tags=tags)
    make_cell(tmp_path / "x", "derf", "muon", 0, 2.0, tags={"design": node})
    study = study_of(load(tmp_path / "x"))
    assert study.cells == [("small", "muon"), ("large", "muon")]
    assert study.left_out[0]["reason"] == "in no cell of the design"


def test_a_rate_counts_only_where_all_its_tuning_runs_ended(tmp_path, make_cell):
    design = {
        "rows": {"key": "norm", "levels": ["rmsnorm", "derf"]},
        "columns": {"key": "optimizer", "levels": ["adamw", "muon"]},
        "tune_seeds": [100, 101],
    }
    for rate, end in ((0.01, 2.2), (0.02, 2.1), (0.04, 2.0)):
        for seed in (100, 101):
            state = "diverged" if (rate, seed) == (0.04, 101) else "completed"
            make_cell(
                tmp_path / "x",
                "rmsnorm",
                "muon",
                seed,
                end,
                rate=rate,
                state=state,
                design=design,
            )
    study = study_of(load(tmp_path / "x"))
    assert study.tuning.own == {("rmsnorm", "muon"): 0.02}
    assert study.tuning.at_edge == ()
    assert [p.states for p in study.tuning.points] == ["", "", "diverged"]


def test_a_study_says_that_it_mixes_two_codes(tmp_path, make_study):
    make_study(tmp_path / "x", seeds=2)
    for i, folder in enumerate(sorted((tmp_path / "x").glob("*-*"))):
        env = json.loads((folder / "env.json").read_text())
        env["git"] = {"revision": "ab"[i % 2] * 40}
        (folder / "env.json").write_text(json.dumps(env))
    (note,) = study_of(load(tmp_path / "x")).notes
    assert note.startswith("2 code versions: aaaaaaaa (")


def test_a_run_of_another_phase_is_in_no_mean(tmp_path, make_study, make_cell):
    make_study(tmp_path / "x", seeds=2)
    tags = {"phase": "adam group"}
    make_cell(tmp_path / "x", "derf", "muon", 101, 0.1, rate=0.02, tags=tags)
    study = study_of(load(tmp_path / "x"))
    (left,) = study.left_out
    assert (left["seed"], left["reason"]) == (101, "of phase adam group")
    assert 101 not in study.runs["own"]["derf", "muon"]


def test_own_rates_that_are_not_the_best_are_told(tmp_path, make_study, make_cell):
    make_study(tmp_path / "x", seeds=2)
    assert not study_of(load(tmp_path / "x")).notes
    runs = {
        "own": {("derf", "muon"): {0: "a", 1: "b", 2: "c"}, ("dyt", "muon"): {0: "a"}},
        "shared": {("derf", "muon"): {0: "d", 1: "e"}, ("dyt", "muon"): {0: "d"}},
    }
    finals = {"a": 2.6, "b": 2.5, "c": 9.0, "d": 1.5, "e": 1.6}
    # Of one seed nothing is said.
    (line,) = mistuned(runs["own"], runs["shared"], finals)
    assert "muon ends at 2.55 at its own rates and at 1.55 at those" in line
    assert not mistuned(runs["own"], runs["shared"], {**finals, "e": 2.7})
