"""Loggers get every row once, end with every run, and can stop none."""

import functools
import importlib.util
import json
import math
import struct
import sys
import time
import types

import pytest

from experiments import api
from experiments.errors import ConfigError, UserError
from experiments.loggers.finite import finite_numbers
from experiments.loggers.guarded import Loggers, check_installed
from experiments.loggers.tensorboard import TensorBoard

NAMES = ("tensorboard", "wandb", "mlflow")
NAN = float("nan")


def rows(*steps: int) -> list[dict]:
    """Rows as training writes them."""
    return [{"step": s, "loss": 1 / s, "tokens": 64 * s} for s in steps]


def wait_for(condition) -> None:
    """Until what another thread or process writes is there."""
    until = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


@functools.cache
def config_with(*overrides: str):
    (config,) = api.compose(["model=tiny", "data=markov", *overrides])
    return config


@pytest.fixture
def run(tmp_path):
    """Attempts of one run: `run(name, steps, from_step, state)` makes one of them."""
    said, attempts = [], []

    def attempt(name, steps, resume_step=0, state="completed", more=()):
        config = config_with(f"logger={name}", "name=a/b", *more)
        loggers = Loggers.of(config, said.append)
        path = tmp_path / "seed=0-0123456789ab"
        path.mkdir(exist_ok=True)
        attempts.append(state)
        loggers.open(
            path, path.name[-12:], config.to_config(), len(attempts), resume_step
        )
        for row in rows(*steps):
            loggers.rows([row])
        loggers.close(state)
        assert said == []
        return path

    return attempt


# -- what is configured ----------------------------------------------------------


@pytest.mark.parametrize(
    "override, names",
    [
        (None, []),
        *((f"logger={name}", [name]) for name in NAMES),
        ("logger=[tensorboard,mlflow]", ["mlflow", "tensorboard"]),
    ],
)
def test_loggers_are_chosen_one_or_several(override, names):
    config = config_with(*([override] if override else []))
    parts = config.runtime.logger_parts()
    assert sorted(parts) == names
    assert sorted(config.to_config()["runtime"]["loggers"]) == names
    json.dumps(config.to_config(), allow_nan=False)


def test_loggers_are_no_part_of_what_a_run_is():
    with_them = config_with("logger=[tensorboard,wandb]")
    assert with_them.identity("f") == config_with().identity("f")
    assert with_them != config_with()


def test_a_sweep_may_choose_them():
    configs = api.compose(["logger=tensorboard,mlflow", "seed=0,1"])
    assert [list(c.runtime.loggers) for c in configs] == [
        ["tensorboard"], ["tensorboard"], ["mlflow"], ["mlflow"],
    ]  # fmt: skip


@pytest.mark.parametrize(
    "overrides, message",
    [
        (
            "logger=tensorbord",
            "logger=tensorbord: no such choice; did you mean tensorb",
        ),
        (
            "logger=wandb runtime.loggers.wandb.mode=onlin",
            "runtime.loggers.wandb.mode: m",
        ),
        ("logger=wandb runtime.loggers.wandb.projct=x", "did you mean project?"),
        ("+runtime.loggers.mine=3", "runtime.loggers.mine: expected a part"),
    ],
)
def test_a_wrong_setting_is_refused_by_its_key(overrides, message):
    with pytest.raises(UserError) as error:
        config_with(*overrides.split())
    assert message in str(error.value)


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_package_is_refused_with_the_extra_that_has_it(
    name, monkeypatch, tmp_path
):
    config = config_with(f"logger={name}")
    package = config.runtime.logger_parts()[name].cls.package
    find = importlib.util.find_spec
    there = types.SimpleNamespace(origin="somewhere.py")
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda n: there if n == package else find(n)
    )
    check_installed(config)
    # W&B leaves folders of its own name: such a folder is no package.
    for absent in (None, types.SimpleNamespace(origin=None)):
        monkeypatch.setattr(importlib.util, "find_spec", lambda n, found=absent: found)
        with pytest.raises(ConfigError) as error:
            check_installed(config)
        assert f"runtime.loggers.{name}: needs {package}, " in str(error.value)
        assert "pip install blocklab[loggers]" in str(error.value)
    check_installed(config_with())


# -- one that fails --------------------------------------------------------------


class Recorder:
    """A logger that remembers, and raises where it is told to."""

    def __init__(self, fails=""):
        self.fails = fails
        self.calls = []

    def _note(self, method, *arguments):
        self.calls.append((method, *arguments))
        if method == self.fails:
            raise RuntimeError("no network\nand more")

    def open(self, run_path, run_id, config, attempt, resume_step):
        self._note("open", run_id, attempt, resume_step)

    def rows(self, rows):
        self._note("rows", *rows)

    def close(self, state):
        self._note("close", state)


@pytest.mark.parametrize("fails", ["open", "rows", "close"])
def test_a_logger_that_fails_is_said_once_and_left_out(fails, tmp_path):
    said, good, bad = [], Recorder(), Recorder(fails)
    loggers = Loggers({"bad": bad, "good": good}, said.append)
    loggers.open(tmp_path / "seed=0-ab", "ab", {}, 2, 10)
    for row in rows(11, 12):
        loggers.rows([row])
    loggers.close("completed")
    loggers.close("completed")
    one, two = rows(11, 12)
    assert good.calls == [
        ("open", "ab", 2, 10), ("rows", one), ("rows", two), ("close", "completed"),
    ]  # fmt: skip
    assert said == [
        f"seed=0-ab: goes on without bad ({fails}: RuntimeError: no network)"
    ]
    got = {
        "open": good.calls[:1],
        "rows": [*good.calls[:2], ("close", "failed")],
        "close": good.calls,
    }
    assert bad.calls == got[fails]


def test_not_even_a_listener_that_fails_stops_a_run(tmp_path):
    def broken(line):
        raise BrokenPipeError

    loggers = Loggers({"bad": Recorder("open")}, broken)
    loggers.open(tmp_path, "ab", {}, 1, 0)
    loggers.rows(rows(1))
    loggers.close("failed")


def test_a_run_that_never_opened_its_loggers_closes_none():
    logger = Recorder()
    Loggers({"one": logger}).close("failed")
    assert logger.calls == []


def test_only_finite_numbers_are_handed_on():
    row = {"step": 3, "loss": NAN, "a": math.inf, "b": None, "c": 2, "finite": False}
    assert finite_numbers(row) == {"c": 2.0}


# -- TensorBoard -----------------------------------------------------------------


def events(folder) -> list:
    """Events of a folder in the order TensorBoard reads them.

    A record is: length (8 bytes), its checksum (4), an Event, its checksum (4).
    """
    from tensorboardX.proto.event_pb2 import Event

    found = []
    for path in sorted(folder.iterdir()):
        data, at = path.read_bytes(), 0
        while at < len(data):
            (length,) = struct.unpack_from("<Q", data, at)
            found.append(Event.FromString(data[at + 12 : at + 12 + length]))
            at += 12 + length + 4
    return found


def curve(folder, tag: str) -> list[tuple[int, float]]:
    """(step, value) as TensorBoard shows them: a START drops what it will see again."""
    from tensorboardX.proto.event_pb2 import SessionLog

    points = []
    for event in events(folder):
        if event.session_log.status == SessionLog.START:
            points = [(step, value) for step, value in points if step < event.step]
        points += [
            (event.step, value.simple_value)
            for value in event.summary.value
            if value.tag == tag
        ]
    return points


@pytest.fixture
def tensorboard():
    pytest.importorskip("tensorboardX")


def test_tensorboard_reads_back_what_was_logged(tensorboard, run):
    path = run("tensorboard", [1, 2, 4])
    assert curve(path / "tensorboard", "loss") == [(1, 1.0), (2, 0.5), (4, 0.25)]
    assert curve(path / "tensorboard", "tokens") == [(1, 64), (2, 128), (4, 256)]
    texts = {
        value.tag.split("/")[0]: b"".join(value.tensor.string_val).decode()
        for event in events(path / "tensorboard")
        for value in event.summary.value
        if value.tensor.string_val
    }
    assert '"batch_size": 16' in texts["config"]
    assert texts["state"] == "completed"


def test_tensorboard_shows_each_step_once_after_two_resumptions(tensorboard, run):
    run("tensorboard", [1, 2, 3, 4], state="preempted")
    run("tensorboard", [3, 4, 5], resume_step=2, state="failed")
    path = run("tensorboard", [5, 6], resume_step=4)
    steps = [step for step, _ in curve(path / "tensorboard", "loss")]
    assert steps == [1, 2, 3, 4, 5, 6]
    assert len(list((path / "tensorboard").iterdir())) == 3  # within a second or not


def test_tensorboard_starts_over_with_a_run_that_does(tensorboard, run):
    run("tensorboard", [1, 2, 3], state="failed")
    path = run("tensorboard", [1, 2])
    assert [step for step, _ in curve(path / "tensorboard", "loss")] == [1, 2]


def test_rows_are_on_disk_before_the_run_ends(tensorboard, tmp_path):
    loggers = Loggers({"tensorboard": TensorBoard()}, pytest.fail)
    loggers.open(tmp_path, "ab", {}, 1, 0)
    loggers.rows([{"step": 1, "loss": 2.0}, {"step": 2, "loss": NAN}])
    wait_for(lambda: curve(tmp_path / "tensorboard", "loss"))
    loggers.close("diverged")
    assert curve(tmp_path / "tensorboard", "loss") == [(1, 2.0)]


# -- MLflow ----------------------------------------------------------------------


@pytest.mark.slow  # importing it takes seconds
def test_mlflow_finds_its_run_again_and_has_each_step_once(run):
    pytest.importorskip("mlflow")
    run("mlflow", [1, 2, 3], state="preempted")
    path = run("mlflow", [3, 4], resume_step=2)

    from mlflow.tracking import MlflowClient

    client = MlflowClient((path.parent / "mlruns").resolve().as_uri())
    experiment = client.get_experiment_by_name("a/b")
    (found,) = client.search_runs([experiment.experiment_id])
    history = client.get_metric_history(found.info.run_id, "loss")
    sent = [(metric.step, metric.value) for metric in history]
    assert sent == [(row["step"], row["loss"]) for row in rows(1, 2, 3, 4)]
    assert found.info.status == "FINISHED"
    assert found.data.tags["state"] == "completed"
    assert found.data.tags["attempt"] == "2"
    assert found.data.params["model.d_model"] == "32"


# -- Weights & Biases ------------------------------------------------------------


class FakeRun:
    def __init__(self):
        self.logged, self.summary, self.ended = [], {}, []

    def log(self, data, step):
        self.logged.append((step, data))

    def finish(self, exit_code):
        self.ended.append(exit_code)


@pytest.fixture
def fake_wandb(monkeypatch):
    """A module in the place of wandb; its runs as they were started."""
    started = []

    def init(**settings):
        started.append((settings, FakeRun()))
        return started[-1][1]

    fake = types.SimpleNamespace(init=init, Settings=lambda **settings: settings)
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return started


def test_wandb_keeps_the_id_of_the_run_over_attempts(fake_wandb, run):
    run("wandb", [1, 2], state="preempted")
    path = run("wandb", [2, 3], resume_step=1, state="failed")
    (first, one), (second, two) = fake_wandb
    assert first["id"] == second["id"] == "0123456789ab"
    assert second["resume"] == "allow"
    assert first["mode"] == "offline"
    assert first["project"] == "a-b"
    assert first["dir"] == str(path)
    assert first["config"]["model"]["d_model"] == 32
    sent = [(1, {"loss": 1.0, "tokens": 64.0}), (2, {"loss": 0.5, "tokens": 128.0})]
    assert one.logged == sent
    assert (one.summary["state"], one.ended) == ("preempted", [0])
    assert (two.summary["state"], two.ended) == ("failed", [1])


@pytest.mark.slow
def test_wandb_leaves_an_offline_run_in_the_runs_folder(run):
    pytest.importorskip("wandb")
    path = run("wandb", [1, 2])
    (folder,) = (path / "wandb").glob("offline-run-*-0123456789ab")
    (file,) = folder.glob("run-*.wandb")
    wait_for(lambda: b"loss" in file.read_bytes())  # by a process of W&B
