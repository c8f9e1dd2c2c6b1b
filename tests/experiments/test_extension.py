"""Runs that start from another run's checkpoint."""

import json

import numpy as np
import pytest

from experiments import api
from experiments.errors import ConfigError

TINY = ["model=tiny", "data=markov", "batch_size=4", "seq_len=8", "schedule=constant"]
QUICK = ["task.eval_every=null", "log_every=1"]


@pytest.fixture
def run(tmp_path):
    def start(*overrides):
        out = f"runtime.output_dir={tmp_path}"
        (member,) = api.run(api.compose([*TINY, *QUICK, out, *overrides]))
        status = json.loads((member.directory.path / "status.json").read_text())
        return member, status, member.directory.rows("metrics.jsonl")

    return start


def test_with_a_constant_rate_it_is_the_longer_run(run):
    whole, whole_status, rows = run("steps=6")
    half, _, _ = run("steps=3")
    more, status, tail = run(
        "steps=6", f"runtime.extend_from={half.directory.identity}"
    )
    assert more.directory.path != whole.directory.path  # another start, another run
    assert status["params_digest"] == whole_status["params_digest"]
    assert [row["step"] for row in tail] == [4, 5, 6]
    np.testing.assert_array_equal(
        [row["loss"] for row in tail], [row["loss"] for row in rows[3:]]
    )


def test_a_source_that_is_not_there_is_refused_before_anything_is_made(run, tmp_path):
    with pytest.raises(ConfigError, match="extend_from: expected a run of"):
        run("steps=6", "runtime.extend_from=no-such-run")
    assert not list(tmp_path.iterdir())


def test_a_run_that_does_not_fit_fails_by_name(run):
    half, _, _ = run("steps=3")
    source = f"runtime.extend_from='{half.directory.path}'"
    wider, status, _ = run("steps=6", "model.d_ff=96", source)
    assert (wider.state, status["state"]) == ("failed", "failed")
    assert "cannot be continued" in status["error"]
    over, _, _ = run("steps=2", source)
    assert "at step 3" in over.error
