"""A line per run that any scheduler can take, and the model of a run for a notebook."""

import shlex
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from experiments import api
from experiments.checkpoints import digest
from experiments.errors import UserError
from experiments.script import _options
from tests.launching import ROOT, rows, runs_below

QUIET = Console(quiet=True)
SWEEP = ("norm=rmsnorm,derf", "seed=0,1", "steps=4", "log_every=2", "+tags={a: 'b c'}")


def lines_of(path) -> list[list[str]]:
    """Words of the command of each line, behind `cd FOLDER &&`."""
    found = [shlex.split(line) for line in path.read_text().splitlines()]
    assert all(words[0] == "cd" and words[2] == "&&" for words in found)
    return [words[3:] for words in found]


def test_a_line_is_a_run_that_is_not_finished_and_nothing_is_run(compose, tmp_path):
    script = tmp_path / "jobs.txt"
    done = compose("norm=derf", "seed=1", "steps=4", "log_every=2")
    api.run(done, console=QUIET)
    configs = compose(
        *SWEEP, f"runtime.script={script}", "runtime.shard=1/2", "dispatch=processes"
    )
    assert api.run(configs, console=QUIET) == []
    found = lines_of(script)
    assert [words[:3] for words in found] == 3 * [
        [sys.executable, str(ROOT / "launch.py"), "hydra.mode=RUN"]
    ]
    asked = [{w for w in words if w.startswith(("norm", "seed"))} for words in found]
    assert asked == [
        {"norm=rmsnorm", "seed=0"}, {"norm=rmsnorm", "seed=1"}, {"norm=derf", "seed=0"},
    ]  # fmt: skip
    for words in found:
        assert not any(w.startswith(("runtime.s", "dispatch")) for w in words)
    (folder,) = {config.folder for config in configs}
    assert len(runs_below(folder)) == 1
    assert len(list(folder.glob("sweep.json"))) == 1


def test_a_line_makes_the_run_of_the_sweep(compose, tmp_path):
    script = tmp_path / "jobs.txt"
    api.run(compose(*SWEEP, f"runtime.script={script}"), console=QUIET)
    line = script.read_text().splitlines()[-1]
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    done = subprocess.run(
        ["sh", "-c", line], cwd=elsewhere, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (config,) = compose("norm=derf", "seed=1", *SWEEP[2:])
    (run,) = runs_below(config.folder).values()
    (member,) = api.run([config], console=QUIET)
    assert member.note == "finished before"
    assert member.directory.path == run
    assert [row["step"] for row in rows(run)][-1] == 4


def test_where_configs_are_is_part_of_a_line():
    typed = ["-m", "--config-dir", "own", "--config-name", "mine", "seed=0,1"]
    search = "hydra.searchpath=[file://x]"
    assert _options([*typed, search, "hydra.mode=MULTIRUN"]) == [
        "--config-name", "mine", "--config-dir", "own", search,
    ]  # fmt: skip


def test_a_script_that_cannot_be_written_is_told(compose, tmp_path):
    script = tmp_path / "nope" / "jobs.txt"
    with pytest.raises(UserError, match=r"runtime\.script: .*jobs\.txt: No such file"):
        api.run(compose(f"runtime.script={script}"), console=QUIET)


# -- the model of a run ----------------------------------------------------------------


@pytest.mark.parametrize("averaging", [[], ["averaging=ema"]])
def test_the_trained_model_is_the_one_that_was_evaluated(compose, averaging):
    (config,) = compose("steps=6", *averaging, "task.eval_batches=1")
    (member,) = api.run([config], console=QUIET)
    model, step = api.trained(member.directory.path)
    assert step == 6
    tokens = jnp.zeros((1, config.seq_len + 1), jnp.int32)
    loss, _ = model.loss(tokens)
    assert np.isfinite(loss)
    params = model_params(model)
    is_last = digest(params) == member.directory.status().params_digest
    assert is_last == (not averaging)


def model_params(model) -> dict:
    """Parameters by path, as checkpoints have them."""
    from flax import nnx

    from blocks.parameters import path_name

    state = nnx.to_flat_state(nnx.state(model, nnx.Param))
    return {path_name(path): jax.device_get(value[...]) for path, value in state}


def test_a_folder_without_a_model_is_told(compose, tmp_path):
    with pytest.raises(UserError, match="expected the folder of a run"):
        api.trained(tmp_path)
