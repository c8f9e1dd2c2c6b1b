import json
import math

import polars as pl
import pytest

from analysis.expectations import expected_entries, parse
from analysis.load import load
from analysis.stats import Interval
from analysis.verdicts import (
    CONFIRMED,
    NOT_CONFIRMED,
    NOT_EVALUATED,
    TOO_FEW,
    evaluate,
    verdict,
)

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
    assert verdict(interval, -0.475, 0.02) == expected


@pytest.mark.parametrize(
    "change, message",
    [
        ({"tolerance": 0}, "tolerance must be positive"),
        ({"expected": "-0.5"}, "expected must be a number, got '-0.5'"),
        ({"expected": True}, "must be a number, got True"),
        ({"fit": "linear"}, "one of power, exponential, sqrt, got 'linear'"),
        ({"quantity": "ffn/up/kernel"}, "must end in first or last"),
        ({"quantity": "val_loss"}, "must be one of mean, got 'power'"),
        ({"variant": "pre"}, "variant must be a mapping, got 'pre'"),
        ({"tolerence": 0.1}, "has .'tolerence'"),
    ],
)
def test_faulty_entry_is_refused_with_its_name(change, message):
    with pytest.raises(ValueError, match=message):
        parse(ENTRY | change)
    with pytest.raises(ValueError, match="entry A1 lacks .'fit'"):
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
