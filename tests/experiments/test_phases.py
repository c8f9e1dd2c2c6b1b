"""Sweeps whose later jobs depend on what earlier ones found."""

import math
import re

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from experiments.errors import ConfigError
from experiments.phases import Best, Finished, phase_jobs

PARSER = OverridesParser.create()


def job(text):
    return tuple(text.split())


TUNED = [
    Finished(job("norm=rmsnorm optimizer=adamw seed=100 lr=1e-3"), 2.5),
    Finished(job("norm=rmsnorm optimizer=adamw seed=100 lr=1e-2"), 2.4),
    Finished(job("norm=derf optimizer=adamw seed=100 lr=1e-3"), 2.6),
    Finished(job("norm=derf optimizer=adamw seed=100 lr=1e-2"), math.nan),
    Finished(
        job("norm=derf model.norm.alpha=0.3 optimizer=adamw seed=100 lr=1e-4"), 1.0
    ),
]


@pytest.mark.parametrize(
    "where, asking, value",
    [
        ((), "norm=rmsnorm optimizer=adamw seed=0", "1e-2"),
        ((), "norm=derf optimizer=adamw seed=0 +tags.phase=measure", "1e-3"),
        ((), "norm=derf model.norm.alpha=0.3 optimizer=adamw", "1e-4"),
        (("norm=rmsnorm",), "norm=derf optimizer=adamw seed=3", "1e-2"),
        (
            ("norm=rmsnorm", "~model.norm.alpha"),
            "norm=derf model.norm.alpha=0.3 optimizer=adamw",
            "1e-2",
        ),
        (("optimizer=adamw",), "norm=derf optimizer=muon", "1e-3"),
    ],
)
def test_the_best_of_the_runs_that_are_comparable(where, asking, value):
    assert Best("optimizer.rate", "lr", where).among(job(asking), TUNED) == value


def test_later_phases_have_no_say():
    finished = [
        Finished(job("seed=100 lr=1"), 1.0),
        Finished(job("seed=100 lr=2"), 1.1),
        Finished(job("seed=0 lr=1"), 9.0, phase=1),
        Finished(job("seed=0 lr=4"), 0.1, phase=2),
    ]
    assert Best("lr", "lr").among(job("seed=0"), finished) == "1"


def test_a_phase_that_held_the_value_fixed_does_not_decide():
    finished = [
        Finished(job("seed=101 lr=1 adam=1"), 3.0),
        Finished(job("seed=101 lr=1 adam=2"), 2.0),
        Finished(job("seed=100 lr=1 adam=2"), 2.5, phase=1),
        Finished(job("seed=100 lr=2 adam=2"), 2.4, phase=1),
    ]
    assert Best("adam", "adam", ("lr=1",)).among(job("seed=0"), finished) == "2"
    assert Best("lr", "lr").among(job("seed=0 adam=2"), finished) == "2"


def test_the_mean_over_tuning_seeds_counts():
    finished = [
        Finished(job("seed=1 lr=1"), 1.0),
        Finished(job("seed=2 lr=1"), 4.0),
        Finished(job("seed=1 lr=2"), 2.0),
        Finished(job("seed=2 lr=2"), 2.0),
        Finished(job("seed=1 lr=3"), 0.1),
        Finished(job("seed=2 lr=3"), math.nan),  # one of its runs diverged
    ]
    assert Best("lr", "lr").among(job("seed=7"), finished) == "2"


def test_several_times_the_best():
    best = Best.parse("rate", {"best": "lr", "times": 4})
    assert best.among(job("norm=rmsnorm optimizer=adamw"), TUNED) == "0.04"


@pytest.mark.parametrize(
    "asking, finished, message",
    [
        (
            "norm=dyt optimizer=adamw",
            TUNED,
            "rate: no earlier run has lr and norm=dyt optimizer=adamw",
        ),
        ("norm=derf", [], "rate: no earlier run has lr and norm=derf"),
        (
            "norm=derf",
            [Finished(job("norm=derf lr=1"), math.nan)],
            "rate: no earlier run with norm=derf came to an end with any lr of 1",
        ),
    ],
)
def test_nothing_to_choose_from(asking, finished, message):
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        Best("rate", "lr").among(job(asking), finished)


@pytest.mark.parametrize(
    "node",
    [{"of": "lr"}, {"best": "lr", "here": []}, {"best": "lr", "where": "a=1"}, {}],
)
def test_a_mapping_that_says_nothing(node):
    with pytest.raises(ConfigError, match=r"^lr: expected \{best: KEY, where: "):
        Best.parse("lr", node)


def test_jobs_of_a_phase():
    sets = {
        "own": {"norm": "rmsnorm,derf", "seed": "0,1", "lr": {"best": "lr"}},
        "shared": {
            "norm": "derf",
            "seed": "0",
            "lr": {"best": "lr", "where": ["norm=rmsnorm"]},
        },
    }
    finished = [Finished((f"norm={n}", "seed=9", f"lr={v}"), x) for n, v, x in [
        ("rmsnorm", 1, 0.2), ("rmsnorm", 2, 0.1), ("derf", 1, 0.1), ("derf", 2, 0.2)
    ]]  # fmt: skip
    jobs = phase_jobs(sets, finished, [], PARSER)
    assert [" ".join(j) for j in jobs] == [
        "norm=rmsnorm seed=0 lr=2",
        "norm=rmsnorm seed=1 lr=2",
        "norm=derf seed=0 lr=1",
        "norm=derf seed=1 lr=1",
        "norm=derf seed=0 lr=2",
    ]


def test_the_command_line_wins_over_what_was_tuned():
    sets = {"measure": {"seed": "0", "lr": {"best": "lr"}}}
    assert phase_jobs(sets, [], ["lr=3"], PARSER) == [["seed=0", "lr=3"]]


def test_params_apply_to_every_set():
    assert phase_jobs({"a": {"x": 1}, "b": {"x": 2}}, [], [], PARSER, {"y": "3"}) == [
        ["y=3", "x=1"],
        ["y=3", "x=2"],
    ]
