"""What is handed to workers, and what becomes of it when they die."""

import dataclasses
import threading

import pytest

from experiments import api
from experiments.dispatch.elsewhere import ATTEMPTS, Elsewhere, WorkerDied, Workers
from experiments.dispatch.share import Outcome, shares_of
from experiments.errors import ConfigError
from experiments.execute import Watcher
from experiments.group import plan, share_of_sweep


@pytest.fixture
def groups(tmp_path):
    """Two programs with five and two runs; nothing is compiled."""
    base = ["model=tiny", "data=markov", "steps=2", f"runtime.output_dir={tmp_path}"]
    configs = api.compose([*base, "norm=rmsnorm", "seed=range(5)"])
    configs += api.compose([*base, "norm=layernorm", "seed=0,1"])
    return plan(configs)


def handed_out(groups, n_workers):
    found = shares_of(
        groups, n_workers, shared=frozenset(), threads=1, stop_file="stop"
    )
    return [members for _, members in found]


@pytest.mark.parametrize("n_workers", [1, 2, 3, 100])
def test_every_run_is_in_one_share_and_a_share_is_of_one_program(groups, n_workers):
    shares = handed_out(groups, n_workers)
    ids = [id(member) for members in shares for member in members]
    assert sorted(ids) == sorted(id(m) for g in groups for m in g.members)
    for members in shares:
        assert len({m.config.choices["norm"] for m in members}) == 1


def test_a_program_is_cut_only_where_there_are_workers_for_it(groups):
    assert [len(m) for m in handed_out(groups, 1)] == [5, 2]
    assert [len(m) for m in handed_out(groups, 2)] == [3, 2, 2]
    assert [len(m) for m in handed_out(groups, 7)] == [1] * 7


def test_finished_runs_are_not_handed_out(groups):
    groups[0].members[0].state = "completed"
    assert sum(map(len, handed_out(groups, 2))) == 6


def test_a_share_is_plain_data_that_makes_the_same_config(groups):
    from experiments.config import Config

    ((share, members), *_) = shares_of(
        groups, 1, shared=frozenset(), threads=1, stop_file="stop"
    )
    run = share.runs[0]
    config = Config.parse(
        run["node"], choices=run["choices"], overrides=run["overrides"]
    )
    assert config.identity("x") == members[0].config.identity("x")
    assert config == members[0].config


# -- shares of a launch ----------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 3, 7, 9])
def test_the_shards_of_a_sweep_are_all_of_it_and_do_not_overlap(groups, n):
    parts = [share_of_sweep(groups, (k, n)) for k in range(n)]
    found = [id(m) for part in parts for group in part for m in group.members]
    assert found == [id(m) for g in groups for m in g.members]
    sizes = [sum(len(g.members) for g in part) for part in parts]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("shard", ["0/3", "4/3", "3", "a/b", "1/0", "-1/3"])
def test_a_share_that_is_none_is_refused(shard):
    with pytest.raises(ConfigError, match=r"runtime\.shard: expected a share as 3/16"):
        api.compose(["model=tiny", f"runtime.shard='{shard}'"])


# -- following workers -----------------------------------------------------------------


class Fake(Elsewhere):
    """Runs nothing; `behave(share)` says what comes back, or raises."""

    def __init__(self, behave, n=2):
        self.behave, self.n = behave, n
        self.submitted = []

    def n_workers(self):
        return self.n

    def workers(self):
        fake = self

        class At(Workers):
            def __enter__(self):
                return self

            def __exit__(self, *_):
                pass

            def submit(self, share):
                fake.submitted.append(share)
                return share

            def is_done(self, handle):
                return True

            def result(self, handle):
                return fake.behave(handle)

        return At()


def seeds(share):
    return [run["node"]["seed"] for run in share.runs]


def completed(share):
    return [Outcome("completed") for _ in share.runs]


def states(groups):
    return {
        (m.config.choices["norm"], m.config.seed): m.state
        for g in groups
        for m in g.members
    }


def test_all_outcomes_arrive_at_their_run(groups):
    def behave(share):
        return [Outcome("failed" if s == 1 else "completed") for s in seeds(share)]

    Fake(behave).execute(groups, threading.Event(), Watcher())
    for (_, seed), state in states(groups).items():
        assert state == ("failed" if seed == 1 else "completed")


def test_a_run_that_kills_workers_takes_no_other_with_it(groups):
    def behave(share):
        if 3 in seeds(share):
            raise WorkerDied("signal 9")
        return completed(share)

    fake = Fake(behave)
    fake.execute(groups, threading.Event(), Watcher())
    found = states(groups)
    assert found.pop(("rmsnorm", 3)) == "failed"
    assert set(found.values()) == {"completed"}
    (killer,) = (m for g in groups for m in g.members if m.state == "failed")
    assert "its worker process died: signal 9" in killer.error
    tries = [share for share in fake.submitted if 3 in seeds(share)]
    assert len(tries) == ATTEMPTS
    assert all(len(share.runs) == 1 for share in tries[1:])


def test_a_worker_that_cannot_begin_fails_its_share_in_one_line(groups):
    def behave(share):
        if 0 in seeds(share):
            raise ValueError("no such\ndevice")
        return completed(share)

    Fake(behave, n=7).execute(groups, threading.Event(), Watcher())
    failed = [m for g in groups for m in g.members if m.state == "failed"]
    assert [m.config.seed for m in failed] == [0, 0]
    assert {m.error for m in failed} == {"ValueError: no such"}


def test_a_stop_reaches_the_workers_by_a_file_that_does_not_stay(groups, tmp_path):
    stop = threading.Event()
    stop.set()
    seen = []

    def behave(share):
        seen.append(len(list(tmp_path.glob("*/.stop-*"))))
        return [Outcome("preempted") for _ in share.runs]

    Fake(behave).execute(groups, stop, Watcher())
    assert set(seen) == {1}
    assert not list(tmp_path.glob("*/.stop-*"))


def test_jobs_that_outlive_the_launcher_are_left_alone(groups, tmp_path):
    stop, said = threading.Event(), []
    stop.set()
    watcher = Watcher()
    watcher.say = said.append
    fake = Fake(completed)
    fake.stops_with_launcher = False
    fake.execute(groups, stop, watcher)
    assert said == ["the jobs go on; the same command collects what they made"]
    assert set(states(groups).values()) == {"planned"}


def test_threads_of_a_worker_are_for_configs_that_leave_them_open(groups):
    ((share, _), *_) = shares_of(
        groups, 1, shared=frozenset(), threads=3, stop_file="stop"
    )
    assert dataclasses.asdict(share)["threads"] == 3
    assert share.runs[0]["node"]["runtime"]["threads"] is None
