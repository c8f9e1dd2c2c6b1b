"""Sweeps in other processes: the same bits, and nothing lost."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from experiments import api
from experiments.errors import ConfigError, UserError

ROOT = Path(__file__).parents[3]
TINY = ["model=tiny", "data=markov", "batch_size=4", "seq_len=8", "steps=6"]
QUICK = ["task.eval_every=null", "runtime.checkpoint.every=3"]
SWEEP = [*TINY, *QUICK, "norm=rmsnorm,layernorm", "seed=0,1"]


def has(package):
    return pytest.mark.skipif(
        importlib.util.find_spec(package) is None, reason=f"needs {package}"
    )


DISPATCHERS = [
    pytest.param(
        ["dispatch=processes", "runtime.dispatch.n_jobs=2"], marks=has("joblib")
    ),
    pytest.param(
        ["dispatch=submitit", "runtime.dispatch.cluster=local"],
        marks=[has("submitit"), pytest.mark.slow],
    ),
    pytest.param(["dispatch=ray"], marks=[has("ray"), pytest.mark.slow]),
]


@pytest.fixture
def unfit(tmp_path):
    """12 digits of a run that nothing of the sweep can start from."""
    (other,) = api.run(
        api.compose([*TINY, *QUICK, "model.d_ff=96", f"runtime.output_dir={tmp_path}"])
    )
    return str(other.directory.path)


@pytest.mark.parametrize("dispatcher", DISPATCHERS)
def test_other_processes_make_the_same_bits_and_fail_alone(dispatcher, tmp_path, unfit):
    def made(name, *more):
        out = [f"name={name}", f"runtime.output_dir={tmp_path}", *more]
        if "dispatch=submitit" in more:
            out += [f"runtime.dispatch.folder='{tmp_path}/jobs'"]
        configs = api.compose([*SWEEP, *out])
        # A run that fails when it begins: its source has another width.
        bad = [f"runtime.extend_from='{unfit}'", "seed=9"]
        configs += api.compose([*TINY, *QUICK, *out, *bad])
        return api.run(configs)

    expected, found = made("here"), made("there", *dispatcher)
    assert [m.state for m in found] == [m.state for m in expected]
    assert sorted(m.state for m in found) == ["completed"] * 4 + ["failed"]
    for here, there in zip(expected, found, strict=True):
        one, two = (
            json.loads((m.directory.path / "status.json").read_text())
            for m in (here, there)
        )
        assert here.directory.path.name == there.directory.path.name
        assert one["params_digest"] == two["params_digest"]
        assert (one["step"], one["error"]) == (two["step"], two["error"])
        if here.state == "completed":
            assert there.loss == here.loss
            assert one["params_digest"]
        else:
            assert "cannot be continued" in there.error
            assert (there.directory.path / "error.txt").exists()


def test_a_second_launch_finds_everything_done(tmp_path, capsys):
    run = [*TINY, *QUICK, f"runtime.output_dir={tmp_path}", "dispatch=processes"]
    (first,) = api.run(api.compose(run))
    capsys.readouterr()
    (again,) = api.run(api.compose(run))
    assert (first.state, again.state) == ("completed", "completed")
    assert again.note == "finished before"
    assert "finished before" in capsys.readouterr().out


def test_what_was_planned_is_on_disk(tmp_path):
    configs = api.compose([*SWEEP, f"runtime.output_dir={tmp_path}"])
    shard = api.compose(
        [*SWEEP, f"runtime.output_dir={tmp_path}", "runtime.shard='1/2'"]
    )
    made = api.run(shard)
    node = json.loads((tmp_path / "train" / "sweep.json").read_text())
    assert node["schema"] == 1
    assert len(made) == 2
    assert len(node["runs"]) == len(configs) == 4
    assert {run["steps"] for run in node["runs"]} == {6}
    folders = {path.parent.name for path in tmp_path.glob("train/*/status.json")}
    assert folders < {run["run_id"] for run in node["runs"]}


LAUNCH = [sys.executable, "launch.py", "-m", *SWEEP]


def test_two_launchers_at_once_make_every_run_once(tmp_path):
    command = [*LAUNCH, f"runtime.output_dir={tmp_path}"]
    launchers = [
        subprocess.Popen(
            command,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for _ in range(2)
    ]
    texts = [launcher.communicate(timeout=600)[0] for launcher in launchers]
    assert [launcher.returncode for launcher in launchers] == [0, 0], texts
    folders = list((tmp_path / "train").glob("*/status.json"))
    assert len(folders) == 4
    for path in folders:
        status = json.loads(path.read_text())
        assert (status["state"], status["attempt"]) == ("completed", 1)
        rows = (path.parent / "metrics.jsonl").read_text().splitlines()
        steps = [json.loads(row)["step"] for row in rows]
        assert steps == sorted(set(steps))


# -- results of one code only ----------------------------------------------------------


def test_other_code_does_not_go_on_with_a_sweep(tmp_path):
    out = f"runtime.output_dir={tmp_path}"
    first = api.compose([*TINY, *QUICK, out, "seed=0"])
    both = api.compose([*TINY, *QUICK, out, "seed=0,1"])
    (member,) = api.run(first)
    env = member.directory.path / "env.json"
    node = json.loads(env.read_text())
    assert len(node["code"]) == 12
    env.write_text(json.dumps({**node, "code": "0" * 12}))
    with pytest.raises(UserError, match="1 run of the sweep came from other code"):
        api.run(both)
    assert [m.state for m in api.run(first)] == ["completed"]  # nothing left to do
    allowed = api.compose(
        [*TINY, *QUICK, out, "seed=0,1", "runtime.allow_code_change=true"]
    )
    assert [m.state for m in api.run(allowed)] == ["completed"] * 2


# -- which runs are made again ---------------------------------------------------------


@pytest.mark.parametrize(
    "state, retry, again",
    [
        ("failed", "failed", True),
        ("failed", "null", False),
        ("diverged", "failed", False),
        ("diverged", "diverged", True),
        ("completed", "diverged", False),
        ("preempted", "null", True),
    ],
)
def test_what_a_launch_makes_again(tmp_path, state, retry, again):
    from experiments.group import plan

    run = [*TINY, f"runtime.output_dir={tmp_path}", f"runtime.retry={retry}"]
    configs = api.compose(run)
    ((member,),) = (group.members for group in plan(configs))
    folder = member.directory.path
    folder.mkdir(parents=True)
    status = {"state": state, "step": 2, "steps": 6, "started": 0, "updated": 0}
    (folder / "status.json").write_text(json.dumps(status))
    ((member,),) = (group.members for group in plan(configs))
    assert member.state == ("planned" if again else state)


def test_a_missing_package_is_told_before_anything_is_made(tmp_path, monkeypatch):
    from experiments.dispatch import extras

    monkeypatch.setattr(extras.importlib.util, "find_spec", lambda name: None)
    run = [*TINY, f"runtime.output_dir={tmp_path}", "dispatch=ray"]
    with pytest.raises(ConfigError, match=r"Ray needs the package ray: .*\[cluster\]"):
        api.run(api.compose(run))
    assert not list(tmp_path.iterdir())
