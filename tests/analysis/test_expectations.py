import json
import math

import polars as pl
import pytest

from analysis.decide import (
    CONFIRMED,
    NOT_CONFIRMED,
    NOT_EVALUATED,
    TOO_FEW,
    verdict,
)
from analysis.expectations import expected_entries, parse
from analysis.load import load
from analysis.stats import Interval
from analysis.verdicts import evaluate

ENTRY = {
    "id": "A1",
    "variant": {"placement": "pre"},
    "quantity": "ffn/up/kernel last",
    "fit": "power",
    "expected": -0.484,
    "tolerance": 0.02,
    "source": "finite grid",
}


@pytest.mark.parametrize(
    "mean, half_width, expected",
    [
        (-0.476, 0.008, CONFIRMED),
        (-0.456, 0.020, CONFIRMED),
        (-0.440, 0.008, NOT_CONFIRMED),
        (-0.476, 0.055, TOO_FEW),
        (-0.440, 0.055, TOO_FEW),
        (-0.476, math.nan, TOO_FEW),
        (-0.200, math.nan, TOO_FEW),
        # Wide, but nowhere near: more seeds would not change it.
        (-0.200, 0.055, NOT_CONFIRMED),
    ],
)
def test_verdict(mean, half_width, expected):
    interval = Interval(mean, mean, mean, half_width, math.nan, 3)
    assert verdict(interval, -0.475, 0.02).status == expected


@pytest.mark.parametrize(
    "change, message",
    [
        ({"tolerance": 0}, "tolerance must be positive"),
        ({"expected": "-0.5"}, "expected must be a number, got '-0.5'"),
        ({"expected": True}, "must be a number, got True"),
        ({"fit": "cubic"}, "one of power, exponential, sqrt, .*, got 'cubic'"),
        ({"quantity": "ffn/up/kernel middle"}, "must end in first, last, all"),
        ({"quantity": "ffn/up/kernel 0"}, "must end in first, last, all"),
        ({"quantity": "val_loss"}, "must be one of mean, got 'power'"),
        ({"quantity": "ffn/up/kernel all"}, "needs a depth"),
        ({"quantity": "ffn/up/kernel all", "fit": "constant"}, "over all layers"),
        ({"fit": "mean"}, "needs a depth"),
        ({"fit": "ratio"}, "needs depths"),
        ({"fit": "sqrt", "against": "total"}, "needs fit power or linear"),
        ({"depth": 0}, "depth must be a whole number from 1, got 0"),
        ({"depths": [6]}, "at least two depths, got .6."),
        ({"variant": "pre"}, "variant must be a mapping, got 'pre'"),
        ({"tolerence": 0.1}, "has .'tolerence'"),
    ],
)
def test_faulty_entry_is_refused_with_its_name(change, message):
    with pytest.raises(ValueError, match=f"entry A1: .*{message}"):
        parse(ENTRY | change)
    with pytest.raises(ValueError, match="entry A1: lacks .'fit'"):
        parse({key: value for key, value in ENTRY.items() if key != "fit"})


@pytest.fixture
def table(tmp_path, make_depth_runs):
    """Pre: the exact law with v = s0^2 = 1, post: constant; 4 seeds, little noise."""

    def make(*entries, sigma=0.01):
        tags = {"expected": list(entries)}
        home = tmp_path / "x"
        make_depth_runs(home, seeds=4, depths=(6, 24, 96), sigma=sigma, tags=tags)
        return load(home)

    return make


def test_laws_are_compared_with_what_was_expected(table):
    outcomes = evaluate(
        table(
            # -0.474: least squares of -1/2 ln(1 + L) on ln L over 6, 24, 96.
            ENTRY | {"expected": -0.474},
            ENTRY | {"id": "A2", "expected": -0.40},
            ENTRY | {"id": "A3", "variant": {"placement": "post"}, "expected": 0},
            ENTRY | {"id": "A4", "quantity": "grad_norm/ffn/down/kernel last"},
            ENTRY | {"id": "A5", "quantity": "ffn/up/kernel first", "expected": 0},
        )
    )
    assert [o.verdict for o in outcomes] == [
        CONFIRMED,
        NOT_CONFIRMED,
        CONFIRMED,
        CONFIRMED,
        CONFIRMED,
    ]
    first = outcomes[0]
    assert (first.id, first.label, first.n) == ("A1", "pre", 4)
    assert abs(first.measured + 0.474) < 0.01
    assert 0 < first.half_width < 0.02


def test_much_noise_is_too_few_seeds_not_a_verdict(table):
    (outcome,) = evaluate(table(ENTRY, sigma=0.5))
    assert outcome.verdict == TOO_FEW


def test_entry_that_meets_several_variants_is_asked_of_each(table):
    outcomes = evaluate(table(ENTRY | {"variant": {}}))
    assert {o.label: o.verdict for o in outcomes} == {
        "pre": CONFIRMED,
        "post": NOT_CONFIRMED,
    }


def test_what_cannot_be_evaluated_says_why(table):
    outcomes = evaluate(
        table(
            ENTRY | {"id": "B1", "variant": {"placement": "peri"}},
            ENTRY | {"id": "B2", "variant": {"placment": "pre"}},
            ENTRY | {"id": "B3", "quantity": "attn/q/kernel first"},
            {"id": "B4"},
        )
    )
    assert {o.verdict for o in outcomes} == {NOT_EVALUATED}
    for outcome, reason in zip(
        outcomes,
        ("no such runs", "'placment' is no choice", "no completed run", "lacks"),
        strict=True,
    ):
        assert reason in outcome.reason


def test_variant_may_name_a_config_value(tmp_path, make_run):
    for rate in (0.001, 0.01):
        for seed in range(3):
            make_run(
                tmp_path / "x",
                seed=seed,
                learning_rate=rate,
                metrics=[{"step": 100, "loss": 3.0, "val_loss": 2 + rate + seed / 1e4}],
                tags={
                    "expected": [
                        ENTRY
                        | {
                            "variant": {"optimizer.learning_rate": 0.01},
                            "quantity": "val_loss",
                            "fit": "mean",
                            "expected": 2.01,
                            "tolerance": 0.005,
                        }
                    ]
                },
            )
    (outcome,) = evaluate(load(tmp_path / "x"))
    assert (outcome.label, outcome.n) == ("learning_rate=0.01", 3)
    assert outcome.verdict == CONFIRMED
    assert abs(outcome.measured - 2.0101) < 1e-9


def test_entries_of_all_runs_are_taken_once():
    lists = [[ENTRY], [ENTRY, ENTRY | {"id": "A2"}], None]
    texts = [None if entries is None else json.dumps(entries) for entries in lists]
    frame = pl.DataFrame({"config.tags.expected": texts})
    assert [e["id"] for e in expected_entries(frame)] == ["A1", "A2"]
    assert expected_entries(pl.DataFrame({"run_id": ["a"]})) == []


@pytest.mark.parametrize("entries", ["A1", ENTRY, [1]])
def test_expected_that_is_no_list_is_one_row_that_says_so(tmp_path, make_run, entries):
    make_run(tmp_path / "x", tags={"expected": entries})
    (outcome,) = evaluate(load(tmp_path / "x"))
    assert outcome.verdict == NOT_EVALUATED
    assert "must be a list of mappings" in outcome.reason


def rows(**quantities):
    return [
        {"step": 0, "quantity": q, "axis": "layer", "values": v}
        for q, v in quantities.items()
    ]


@pytest.fixture
def exact(tmp_path, make_run):
    """Networks without noise: seed s scales everything by 1 + s / 1000."""

    def make(*entries):
        for depth in (4, 8, 16):
            block = range(1, depth + 1)
            for seed in range(3):
                scale = 1 + seed / 1000
                probes = rows(
                    up=[scale * 2.0 * b**-0.5 for b in block],
                    grows=[math.exp(0.25 * b) for b in block],
                    square=[scale * (3 + 0.5 * b) for b in block],
                    inverse=[scale * (3 + 0.5 * b) ** -0.5 for b in block],
                    total=[-float(depth)],
                    flat=[scale * (1.5 + (depth == 8) / 100)],
                )
                make_run(
                    tmp_path / "x",
                    task="depth",
                    model="M",
                    n_layers=depth,
                    seed=seed,
                    probes=probes,
                    tags={"expected": list(entries)},
                )
        return load(tmp_path / "x")

    return make


# quantity, fit, other keys, the number by hand
@pytest.mark.parametrize(
    "quantity, fit, more, expected",
    [
        ("up last", "power", {}, -0.5),
        ("up 2", "power", {}, 0.0),
        ("up all", "power", {"depth": 16}, -0.5),
        ("up all", "power", {"depth": 16, "from_block": 4}, -0.5),
        ("grows all", "exponential", {"depth": 8}, 0.25),
        ("grows last", "exponential", {}, 0.25),
        ("grows last", "exponential", {"depths": [4, 16]}, 0.25),
        ("square last", "linear", {}, 0.5005),  # mean scale 1.001
        ("square all", "linear", {"depth": 8}, 0.5005),
        ("total", "linear", {}, -1.0),
        ("inverse last", "inverse_square", {}, 6.0),
        ("up last", "ratio", {"depths": [4, 16]}, 0.5),
        ("up all", "ratio", {"depth": 16}, 4.0),
        ("up first", "mean", {"depth": 8}, 2.002),
        ("up first", "constant", {}, 2.002),
        ("inverse last", "power", {"against": "square last"}, -0.5),
        ("total", "linear", {"against": "square last"}, -1.998),  # -2 / mean scale
    ],
)
def test_every_fit_measures_its_number(exact, quantity, fit, more, expected):
    entry = {
        "id": "E",
        "variant": {},
        "quantity": quantity,
        "fit": fit,
        "expected": expected,
        "tolerance": 0.02,
        **more,
    }
    (outcome,) = evaluate(exact(entry))
    assert outcome.reason == ""
    assert abs(outcome.measured - expected) < 2e-5
    assert outcome.n == 3
    assert outcome.verdict == CONFIRMED
    assert outcome.seeds_needed >= 2


def test_a_constant_is_judged_at_its_worst_depth(exact):
    entry = ENTRY | {"variant": {}, "quantity": "flat", "fit": "constant"}
    (outcome,) = evaluate(exact(entry | {"expected": 1.5, "tolerance": 0.005}))
    assert abs(outcome.measured - 1.51 * 1.001) < 1e-9
    assert outcome.verdict == NOT_CONFIRMED


def test_what_does_not_grow_has_no_s0_over_v(exact):
    entry = ENTRY | {"variant": {}, "quantity": "square last", "fit": "inverse_square"}
    (outcome,) = evaluate(exact(entry))
    assert (outcome.verdict, outcome.reason) == (NOT_CONFIRMED, "does not grow")


def test_layers_are_asked_for_where_there_are_several(exact):
    entry = ENTRY | {"variant": {}, "quantity": "up"}
    (outcome,) = evaluate(exact(entry))
    assert outcome.verdict == NOT_EVALUATED
    assert "'up' has layers" in outcome.reason
    missing = ENTRY | {"variant": {}, "quantity": "up all", "depth": 5}
    (outcome,) = evaluate(exact(missing))[1:]
    assert "no completed run of depth 5" in outcome.reason


def test_too_few_seeds_says_how_many_would_do(table):
    (outcome,) = evaluate(table(ENTRY, sigma=0.3))
    assert outcome.verdict == TOO_FEW
    assert outcome.seeds_needed > 4
