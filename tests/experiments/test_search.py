"""Searches by Optuna: what is varied, and that a study is never lost."""

import math

import pytest
import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.utils import JobReturn, JobStatus

from experiments import api
from experiments.errors import ConfigError, UserError
from tests.launching import SMALL, launch, runs_below, status

pytest.importorskip("optuna", reason="the extra optuna is not installed")

from optuna.distributions import (
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from experiments.search import RESULTS, STUDY, Search, first_values
from experiments.search_space import Space

RATE, NORM = "optimizer.learning_rate", "norm"
COMMAND = (f"{RATE}=tag(log,interval(1e-4,1e-1))", f"{NORM}=rmsnorm,derf", "steps=3")


def space_of(*overrides, params=None) -> Space:
    return Space.of(params, overrides, OverridesParser.create())


# -- the space -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text, expected",
    [
        ("x=1,2", CategoricalDistribution(("1", "2"))),
        ("x=choice(derf,'a b')", CategoricalDistribution(("derf", "a\\ b"))),
        ("x=range(2,10,3)", IntDistribution(2, 8, step=3)),
        ("x=range(3,0,-1)", IntDistribution(1, 3)),
        ("x=range(0.5,2,0.5)", CategoricalDistribution(("0.5", "1.0", "1.5"))),
        ("x=interval(0,1)", FloatDistribution(0.0, 1.0)),
        ("x=tag(log,interval(1e-4,1))", FloatDistribution(1e-4, 1.0, log=True)),
        ("x=int(interval(1,8))", IntDistribution(1, 8)),
        ("+x.y=int(tag(log,interval(1,8)))", IntDistribution(1, 8, log=True)),
    ],
)
def test_a_sweep_is_a_distribution(text, expected):
    space = space_of(text)
    assert list(space.dimensions.values()) == [expected]


def test_a_trial_is_a_job_for_every_seed_in_the_order_of_the_command_line():
    space = space_of("a=1", "x=interval(0,1)", "seed=3,4", "~b", params={"x": "1,2"})
    assert list(space.dimensions) == ["x"]
    assert space.jobs({"x": 1e-05}) == [
        ["a=1", "x=1e-05", "seed=3", "~b"],
        ["a=1", "x=1e-05", "seed=4", "~b"],
    ]


@pytest.mark.parametrize(
    "text, message",
    [
        ("seed=1,2", "nothing to search"),
        ("x=tag(log,interval(0,1))", r"x=tag\(log,interval\(0,1\)\): "),
        ("x=interval(2,1)", r"x=interval\(2,1\): "),
        ("x=range(2,2)", "no values to try"),
    ],
)
def test_what_is_no_space_is_refused(text, message):
    with pytest.raises(ConfigError, match=message):
        space_of(text)


def test_every_choice_is_composed_before_anything_runs_and_only_the_first_must_fit():
    seen = []

    def check(jobs):
        seen.append(" ".join(jobs[0]))
        if "y=2" in jobs[0]:
            raise ConfigError("no")

    space = space_of("x=a,b", "y=int(interval(1,2))")
    assert first_values(space, check) == [["x=a", "y=1"]]
    assert seen == ["x=a y=1", "x=b y=1", "x=a y=2"]
    with pytest.raises(ConfigError, match="no"):
        first_values(space_of("x=a,b", "y=2"), check)


# -- the study -------------------------------------------------------------------------


def value_of(job) -> float:
    """A bowl around 1e-2, deeper for derf."""
    own = dict(override.split("=") for override in job)
    bowl = math.log10(float(own[RATE])) + 2
    return bowl**2 - (own[NORM] == "derf") + 0.01 * int(own.get("seed", 0))


class Killed(BaseException):
    """Stands for a launcher that is gone."""


class Fake:
    """Launches nothing; `values(job)` is what a run reaches, None for one that fails."""

    def __init__(self, config, values=value_of):
        self.config, self.values = config, values
        self.batches, self.said = [], []

    def launch(self, jobs):
        self.batches.append(jobs)
        return [self._returned(job) for job in jobs]

    def _returned(self, job):
        returned, value = JobReturn(), self.values(job)
        returned.overrides, returned.cfg = job, self.config
        failed = value is None
        returned.status = JobStatus.FAILED if failed else JobStatus.COMPLETED
        returned.return_value = RuntimeError("failed") if failed else value
        return returned

    def search(self, *, n_trials=7, n_jobs=3, overrides=COMMAND, check=None, **changes):
        sampler = {"_target_": "optuna.samplers.TPESampler", "n_startup_trials": 3}
        return Search(
            space=space_of(*overrides),
            sampler=changes.get("sampler", sampler),
            n_trials=n_trials,
            n_jobs=n_jobs,
            seed=changes.get("seed", 0),
            config=changes.get("config", self.config),
            launch=self.launch,
            check=check or (lambda jobs: None),
            say=self.said.append,
        )


@pytest.fixture
def config(compose):
    return compose("name=search")[0]


def results(config) -> dict:
    return yaml.safe_load((config.folder / RESULTS).read_text())


@pytest.fixture
def whole(compose):
    """The trials of a search that nothing came between."""
    (config,) = compose("name=whole")
    Fake(config).search().run()
    return results(config)["trials"]


def test_batches_are_launched_together_and_the_best_is_on_disk(config):
    fake = Fake(config)
    returns = fake.search().run()
    assert [len(batch) for batch in fake.batches] == [3, 3, 1]
    assert len(returns) == 7
    found = results(config)
    values = [trial["value"] for trial in found["trials"]]
    jobs = [job for batch in fake.batches for job in batch]
    assert values == [value_of(job) for job in jobs]
    assert found["best_value"] == min(values)
    assert found["best_params"] == found["trials"][found["best_trial"]]["params"]
    assert fake.said[-1].startswith(f"7 of 7 trials; best {min(values):.4f}, trial ")


@pytest.mark.parametrize("n_before", range(7))
def test_a_search_that_is_killed_while_it_runs_makes_the_same_trials(
    config, whole, n_before
):
    def until_killed(job):
        if until_killed.left == 0:
            raise Killed
        until_killed.left -= 1
        return value_of(job)

    until_killed.left = n_before
    with pytest.raises(Killed):
        Fake(config, until_killed).search().run()
    fake = Fake(config)
    fake.search().run()
    assert results(config)["trials"] == whole
    assert sum(map(len, fake.batches)) == 7 - n_before // 3 * 3


@pytest.mark.parametrize("place", ["ask", "tell"])
@pytest.mark.parametrize("n_before", [1, 2, 4])
def test_a_kill_between_two_trials_of_a_batch_changes_nothing(
    config, whole, monkeypatch, place, n_before
):
    import optuna

    calls, real = [], getattr(optuna.Study, place)

    def until_killed(*args, **kwargs):
        calls.append(1)
        if len(calls) > n_before:
            raise Killed
        return real(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(optuna.Study, place, until_killed)
        with pytest.raises(Killed):
            Fake(config).search().run()
    Fake(config).search().run()
    assert results(config)["trials"] == whole


def test_more_trials_go_on_and_none_runs_all_again(config):
    first = Fake(config)
    first.search(n_trials=3).run()
    fake = Fake(config)
    fake.search(n_trials=5).run()
    assert [len(batch) for batch in fake.batches] == [2]
    fake = Fake(config)
    fake.search(n_trials=5).run()  # finished runs are skipped by the launcher
    assert [len(batch) for batch in fake.batches] == [5]
    assert fake.batches[0][:3] == first.batches[0]


def test_the_mean_over_seeds_counts(config):
    fake = Fake(config)
    fake.search(n_trials=3, overrides=(*COMMAND, "seed=0,2")).run()
    (batch,) = fake.batches
    assert len(batch) == 6
    for trial, pair in zip(results(config)["trials"], batch[::2], strict=True):
        assert trial["value"] == pytest.approx(value_of(pair) + 0.01, rel=1e-12)


def test_a_trial_that_diverged_is_the_worst_and_one_that_failed_is_made_again(config):
    def values(job):
        rate = float(dict(o.split("=") for o in job)[RATE])
        return math.nan if rate > 3e-2 else None if rate < 1e-3 else value_of(job)

    Fake(config, values).search(n_trials=9, n_jobs=9).run()
    states = [trial["state"] for trial in results(config)["trials"]]
    assert set(states) == {"completed", "diverged", "open"}
    fake = Fake(config)
    fake.search(n_trials=9, n_jobs=9).run()
    assert len(fake.batches[0]) == states.count("open")
    after = [trial["state"] for trial in results(config)["trials"]]
    assert after == ["completed" if s == "open" else s for s in states]


def test_a_batch_that_failed_as_a_whole_is_the_last(config):
    fake = Fake(config, lambda job: None)
    fake.search().run()
    assert [len(batch) for batch in fake.batches] == [3]


def test_a_combination_that_cannot_be_is_told_and_left_out(config):
    def check(jobs):
        if any("norm=derf" in job for job in jobs):
            raise ConfigError("norm: not today")

    fake = Fake(config)
    fake.search(check=check).run()
    jobs = [job for batch in fake.batches for job in batch]
    assert jobs
    assert not any("norm=derf" in job for job in jobs)
    states = [trial["state"] for trial in results(config)["trials"]]
    assert states.count("impossible") == 7 - len(jobs) > 0
    assert any(line.endswith("cannot be: norm: not today") for line in fake.said)


@pytest.mark.parametrize(
    "changes, message",
    [
        (
            {"overrides": (*COMMAND[:2], "steps=4")},
            r"overrides \['steps=3'\], got \['st",
        ),
        ({"overrides": (f"{RATE}=interval(0,1)", *COMMAND[1:])}, f"with {RATE} Float"),
        ({"overrides": (COMMAND[0], "steps=3")}, "with norm Cat.*, got None"),
        ({"sampler": {"_target_": "optuna.samplers.RandomSampler"}}, "with _target_ "),
        ({"seed": 1}, "with seed 0, got 1"),
    ],
)
def test_a_study_of_another_search_is_refused(config, changes, message):
    Fake(config).search(n_trials=1).run()
    before = (config.folder / STUDY).read_bytes()
    fake = Fake(config)
    with pytest.raises(UserError, match=rf"{STUDY}: .*{message}.*\(name="):
        fake.search(**changes).run()
    assert fake.batches == []
    assert (config.folder / STUDY).read_bytes() == before


def test_where_runs_are_made_is_no_part_of_a_search(config):
    Fake(config).search(n_trials=1).run()
    fake = Fake(config)
    fake.search(overrides=(*COMMAND, "dispatch=processes", "runtime.report=true")).run()
    assert sum(map(len, fake.batches)) == 6


def test_two_launchers_do_not_make_one_search(config):
    inner = []

    def values(job):
        with pytest.raises(UserError, match="another launcher is at work on this sear"):
            Fake(config).search().run()
        inner.append(job)
        return value_of(job)

    Fake(config, values).search(n_trials=1).run()
    assert len(inner) == 1


@pytest.mark.parametrize("key", ["n_trials", "n_jobs"])
def test_a_search_of_nothing_is_refused(config, key):
    with pytest.raises(
        ConfigError, match=rf"hydra\.sweeper\.{key}: must be at least 1"
    ):
        Fake(config).search(**{key: 0})


@pytest.mark.parametrize(
    "override, message",
    [
        ("runtime.shard='1/2'", "runtime.shard: not for a search"),
        ("runtime.script=jobs.txt", "runtime.script: not for a search"),
        ("task=count", "task: Count makes no run that a search could compare"),
    ],
)
def test_a_launch_that_cannot_compare_runs_is_refused(compose, override, message):
    task = {"task": "count"} if override == "task=count" else {}
    (config,) = compose(*(() if task else (override,)), **task)
    with pytest.raises(ConfigError, match=message):
        Fake(config).search()


def test_from_python_a_search_is_no_list_of_jobs():
    with pytest.raises(ConfigError, match=r"run it by launch\.py -m"):
        api.compose(["hydra/sweeper=optuna", "seed=1,2"])


# -- as a user runs it -----------------------------------------------------------------


def test_trials_train_as_one_group_and_the_same_command_goes_on(tmp_path):
    command = (
        "-m", *SMALL, "steps=4", "hydra/sweeper=optuna", "hydra.sweeper.n_jobs=2",
        f"{RATE}=tag(log,interval(1e-4,1e-1))",
    )  # fmt: skip
    done = launch(*command, "hydra.sweeper.n_trials=2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "2 runs, 1 program" in done.stdout
    more = launch(*command, "hydra.sweeper.n_trials=3", cwd=tmp_path)
    assert more.returncode == 0, more.stderr
    assert "1 run, 1 program" in more.stdout
    folder = tmp_path / "outputs/train"
    runs = runs_below(folder)
    assert len(runs) == 3
    assert {status(run)["state"] for run in runs.values()} == {"completed"}
    found = yaml.safe_load((folder / RESULTS).read_text())
    assert len(found["trials"]) == 3
    assert found["best_value"] == min(trial["value"] for trial in found["trials"])
    assert f"best {found['best_value']:.4f}, trial {found['best_trial']}" in more.stdout
