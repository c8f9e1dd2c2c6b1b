"""Where a run diverged."""

import json

import numpy as np
import pytest

from experiments import api, replay

NAN, INF = float("nan"), float("inf")


def row(**changes):
    """Quantities of a step of three layers in which all is well."""
    return {
        "loss": np.float32(2.0),
        "branch_mean_square": np.ones((3, 2)),
        "grad_norm/total": np.float32(3.0),
        "grad_norm/attn/q/kernel": np.array([1.0, 2.0, 1.0]),
        "grad_norm/ffn/up/kernel": np.array([NAN, 0.5, NAN]),  # layer 1 alone has it
        "grad_norm/embedding/table": np.array([0.1]),
        **changes,
    }


def branches(*bad):
    value = np.ones((3, 2))
    for at in bad:
        value[at] = NAN
    return value


GOOD = {"blocks/layers/q": np.ones(3), "table": np.ones(2)}


@pytest.mark.parametrize(
    "params, changes, site",
    [
        (
            {**GOOD, "table": np.array([1.0, INF])},
            {"loss": NAN},
            {"kind": "parameter", "path": "table"},
        ),
        (
            GOOD,
            {"branch_mean_square": branches((1, 1), (2, 0)), "loss": NAN},
            {"kind": "branch", "layer": 1, "sublayer": 1},
        ),
        (GOOD, {"loss": INF}, {"kind": "loss"}),
        (
            GOOD,
            {
                "grad_norm/total": NAN,
                "grad_norm/attn/q/kernel": np.array([NAN, INF, 1.0]),
                "grad_norm/ffn/up/kernel": np.ones(3),
            },
            {"kind": "gradient", "path": "attn/q/kernel", "layer": 1},
        ),
        (GOOD, {}, {"kind": "none", "largest_gradient": "attn/q/kernel", "layer": 1}),
    ],
)
def test_the_first_place_in_the_order_of_computation(params, changes, site):
    assert replay.site_of(params, row(**changes)) == site
    assert replay.told(site)


TINY = ["model=tiny", "data=markov", "batch_size=4", "seq_len=8", "steps=12"]
WILD = ["optimizer=sgd", "optimizer.learning_rate=30", "optimizer.clip_norm=null"]
LOGGED = ["schedule=constant", "log_every=1", "task.eval_every=null"]


@pytest.mark.parametrize("every", ["null", "2"])
def test_the_step_is_the_one_that_was_taken(tmp_path, monkeypatch, every):
    out = f"runtime.output_dir={tmp_path}"
    run = [*TINY, *WILD, *LOGGED, out, f"runtime.checkpoint.every={every}"]
    looked, site_of = [], replay.site_of

    def look(params, row):
        looked.append(row)
        return site_of(params, row)

    monkeypatch.setattr(replay, "site_of", look)
    (free,) = api.run(api.compose([*run, "task.diverged_above=1e30"]))
    losses = [r["loss"] for r in free.directory.rows("metrics.jsonl")]
    # The first step from the third on that is worse than all before it.
    bad = next(i for i in range(2, len(losses)) if losses[i] > max(losses[:i]))
    limit = (losses[bad] + max(losses[:bad])) / 2
    looked.clear()

    (member,) = api.run(api.compose([*run, f"task.diverged_above={limit}"]))
    assert (member.state, member.diverged_step) == ("diverged", bad + 1)
    rows = member.directory.rows("metrics.jsonl")
    (seen,) = looked
    assert float(seen["loss"]) == pytest.approx(rows[-1]["loss"], rel=1e-6)
    total = float(seen["grad_norm/total"])
    assert total == pytest.approx(rows[-1]["grad_norm"], rel=1e-5)
    status = json.loads((member.directory.path / "status.json").read_text())
    assert status["diverged_at"]["kind"] == "none"
    assert "all finite" in member.note


def test_it_can_be_left_out(tmp_path):
    run = [*TINY, *WILD, *LOGGED, f"runtime.output_dir={tmp_path}"]
    more = ["task.diverged_above=0.01", "runtime.locate_divergence=false"]
    (member,) = api.run(api.compose([*run, *more]))
    status = json.loads((member.directory.path / "status.json").read_text())
    assert (status["state"], status["diverged_at"]) == ("diverged", None)
