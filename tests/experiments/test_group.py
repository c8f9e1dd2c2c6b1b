"""What happens to runs in a group when something goes wrong around them."""

import math
import threading

import pytest
from rich.console import Console

from experiments import api
from experiments.execute import Watcher, execute
from experiments.group import plan


def test_a_broken_display_stops_no_run(compose):
    """Rich ends the thread that prints into a closed pipe."""

    class Broken(Watcher):
        def on_end(self, member):
            raise SystemExit(1)

    groups = plan(compose("seed=0,1,2", "steps=5"))
    execute(groups, threading.Event(), Broken())
    assert [m.state for m in groups[0].members] == ["completed"] * 3


def test_an_error_before_the_first_step_fails_that_run_only(compose, monkeypatch):
    groups = plan(compose("seed=0,1,2", "steps=5"))
    whole = groups[0].env

    def env(member):
        if member.config.seed == 1:
            raise KeyError("no such thing")
        return whole(member)

    monkeypatch.setattr(groups[0], "env", env)
    execute(groups, threading.Event())
    assert [m.state for m in groups[0].members] == ["completed", "failed", "completed"]
    assert "no such thing" in groups[0].members[1].error


def test_a_diverged_run_is_no_good_score(compose):
    (member,) = api.run(
        compose("steps=20", "optimizer=sgd", "optimizer.clip_norm=null",
                "optimizer.learning_rate=1e30", "schedule=constant"),
        console=Console(quiet=True),
    )  # fmt: skip
    assert member.state == "diverged"
    assert math.isnan(member.objective)
    again = plan([member.config])[0].members[0]
    assert again.state == "diverged"
    assert math.isnan(again.objective)


@pytest.mark.parametrize("layout", ["threads", "vmap"])
def test_one_member_diverges_the_others_do_not_notice(compose, layout):
    members = api.run(
        compose("steps=20", "optimizer.learning_rate=1e-3,1e6", "seed=0,1",
                f"runtime.layout={layout}"),
        console=Console(quiet=True),
    )  # fmt: skip
    states = {(m.config.optimizer["learning_rate"], m.state) for m in members}
    assert states == {(1e-3, "completed"), (1e6, "diverged")}
