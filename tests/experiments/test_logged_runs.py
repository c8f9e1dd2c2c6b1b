"""Runs with loggers: one curve however often resumed, and none is stopped by them."""

import threading

import pytest

from experiments import api
from experiments.execute import execute
from experiments.group import plan
from experiments.loggers.tensorboard import TensorBoard
from tests.experiments.test_loggers import curve

pytest.importorskip("tensorboardX")


class Stopping(threading.Event):
    """Set from the seventh time that it is asked."""

    asked = 0

    def is_set(self) -> bool:
        self.asked += 1
        return self.asked > 6


def test_a_run_that_was_resumed_is_one_curve(compose):
    every = ("runtime.checkpoint.every=40", "task.eval_every=20")
    configs = compose("logger=tensorboard", *every)
    groups = plan(configs)
    execute(groups, Stopping())
    assert groups[0].members[0].state == "preempted"
    (member,) = api.run(configs)
    assert member.state == "completed"
    folder = member.directory.path / "tensorboard"
    for key in ("loss", "val_loss"):
        rows = [r for r in member.directory.rows("metrics.jsonl") if key in r]
        steps, values = zip(*curve(folder, key), strict=True)
        assert list(steps) == [row["step"] for row in rows]
        assert values == pytest.approx([row[key] for row in rows])
    assert len(list(folder.iterdir())) == 2


def test_a_logger_that_breaks_stops_no_run(compose, monkeypatch):
    def broken(self, rows):
        raise OSError("no space left")

    monkeypatch.setattr(TensorBoard, "rows", broken)
    rates = "optimizer.learning_rate=1e-3,1e30"
    members = api.run(compose("logger=tensorboard", rates))
    assert sorted(m.state for m in members) == ["completed", "diverged"]


def test_a_run_that_takes_no_step_is_logged_too(compose):
    (member,) = api.run(compose("logger=tensorboard", task="depth"))
    points = curve(member.directory.path / "tensorboard", "loss")
    assert [step for step, _ in points] == [0]
