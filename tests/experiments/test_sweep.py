"""Command lines with commas, and the sweeps of experiments, as lists of jobs."""

import pytest
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode
from hydra.utils import instantiate

from experiments import api, job
from experiments.compose import CONF, Composer
from experiments.errors import ConfigError
from experiments.sweep import combinations

EXPERIMENTS = sorted(p.stem for p in (CONF / "experiment").glob("*.yaml"))


@pytest.fixture(scope="module")
def loader():
    with initialize_config_dir(str(CONF), version_base="1.3"):
        yield GlobalHydra.instance().config_loader()


@pytest.fixture
def jobs(loader):
    parser = Composer(loader, "config").parser

    def jobs(*arguments, params=None, sweeps=None):
        return combinations(params, sweeps, arguments, parser)

    return jobs


def test_no_sweep_is_one_job(jobs):
    assert jobs() == [[]]
    assert jobs("seed=1", "norm=derf") == [["seed=1", "norm=derf"]]


def test_commas_multiply_and_the_last_varies_fastest(jobs):
    assert jobs("norm=rmsnorm,derf", "steps=5", "seed=0,1") == [
        ["norm=rmsnorm", "steps=5", "seed=0"],
        ["norm=rmsnorm", "steps=5", "seed=1"],
        ["norm=derf", "steps=5", "seed=0"],
        ["norm=derf", "steps=5", "seed=1"],
    ]


def test_ranges_count_up(jobs):
    assert jobs("seed=range(0,3)") == [["seed=0"], ["seed=1"], ["seed=2"]]
    assert jobs("a=range(0,1,0.5)") == [["a=0.0"], ["a=0.5"]]
    assert jobs("a=choice(1,x)") == [["a=1"], ["a=x"]]


def test_a_glob_takes_the_choices_of_its_group(jobs):
    found = {job for (job,) in jobs("norm=glob(*norm)")}
    assert {"norm=rmsnorm", "norm=layernorm"} <= found
    assert "norm=derf" not in found


def test_quotes_hold_commas_together(jobs):
    assert jobs("name='a,b'") == [["name='a,b'"]]
    assert jobs("name='a,b','c'") == [["name='a,b'"], ["name='c'"]]


def test_lists_and_mappings_are_values(jobs):
    assert jobs("tags.a=[1,2]", "tags.b={c:1}") == [["tags.a=[1,2]", "tags.b={c:1}"]]
    assert jobs("tags.a=[1],[2]") == [["tags.a=[1]"], ["tags.a=[2]"]]


def test_params_of_an_experiment_come_first(jobs):
    assert jobs("seed=0,1", params={"norm": "rmsnorm,derf", "steps": 5}) == [
        ["norm=rmsnorm", "steps=5", "seed=0"],
        ["norm=rmsnorm", "steps=5", "seed=1"],
        ["norm=derf", "steps=5", "seed=0"],
        ["norm=derf", "steps=5", "seed=1"],
    ]


def test_values_of_a_file_are_written_as_hydra_reads_them(jobs):
    params = {"a": None, "b": True, "c": 1e-5, "d": "1,2"}
    assert jobs(params=params) == [
        ["a=null", "b=True", "c=1e-05", "d=1"],
        ["a=null", "b=True", "c=1e-05", "d=2"],
    ]


@pytest.mark.parametrize("typed", ["seed=7", "+seed=7", "++seed=7", "~seed"])
def test_the_command_line_replaces_a_param(jobs, typed):
    assert jobs(typed, params={"seed": "range(0,16)", "norm": "derf"}) == [
        ["norm=derf", typed]
    ]


def test_the_command_line_replaces_a_param_in_every_sweep(jobs):
    sweeps = {"a": {"norm": "derf", "seed": "0,1"}, "b": {"norm": "dyt"}}
    assert jobs("seed=7", sweeps=sweeps) == [
        ["norm=derf", "seed=7"],
        ["norm=dyt", "seed=7"],
    ]


def test_a_choice_at_one_site_does_not_replace_the_shared_one(jobs):
    assert jobs("norm@model.ffn_norm=dyt", params={"norm": "derf"}) == [
        ["norm=derf", "norm@model.ffn_norm=dyt"]
    ]


def test_a_deletion_keeps_its_words(jobs):
    assert jobs("~positions", "~tags.x=1") == [["~positions", "~tags.x=1"]]


def test_sweeps_run_one_after_the_other_with_the_params_in_each(jobs):
    sweeps = {"a": {"seed": "0,1"}, "b": {"norm": "dyt", "steps": 9}, "c": None}
    assert jobs(params={"steps": 5}, sweeps=sweeps) == [
        ["steps=5", "seed=0"],
        ["steps=5", "seed=1"],
        ["steps=9", "norm=dyt"],
        ["steps=5"],
    ]


def test_a_job_asked_for_twice_runs_once(jobs):
    assert jobs("seed=0,1,0") == [["seed=0"], ["seed=1"]]
    assert jobs(sweeps={"a": {"seed": "0,1"}, "b": {"seed": "1,2"}}) == [
        ["seed=0"],
        ["seed=1"],
        ["seed=2"],
    ]


def test_an_interval_is_refused(jobs):
    with pytest.raises(ConfigError, match=r"^optimizer.b1=interval\(0.8,0.99\): "):
        jobs("optimizer.b1=interval(0.8,0.99)")


def test_several_experiments_at_once_are_refused(jobs):
    # Each would silently lose its own sweep.
    with pytest.raises(
        ConfigError, match=r"^experiment=xiong,quickstart: expected one"
    ):
        jobs("experiment=xiong,quickstart")


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_is_the_same_sweep_from_python_and_by_launch(
    loader, name, monkeypatch
):
    """The plugin, fed as Hydra feeds it, against api.compose."""
    typed = [f"experiment={name}", "steps=3", "seed=0,1"]
    fixed = [f"experiment={name}", "steps=3"]
    config = loader.load_configuration("config", fixed, run_mode=RunMode.MULTIRUN)
    assert config.hydra.mode == RunMode.MULTIRUN  # -m goes without saying
    sweeper = instantiate(config.hydra.sweeper)
    sweeper.config, sweeper.loader = config, loader
    if config.hydra.sweeper.phases:
        with pytest.raises(ConfigError, match="runs in phases"):
            api.compose(typed)
        return
    launched = []

    class Recorder:
        def launch(self, jobs, initial_job_idx):
            launched.extend(jobs)
            return []

    sweeper.launcher = Recorder()
    checked = []
    monkeypatch.setattr(job, "check_all", lambda *a: checked.extend(a[-1]))
    monkeypatch.setattr(job, "finish_sweep", lambda returns: None)
    sweeper.sweep(typed)

    configs = api.compose(typed)
    assert launched == checked == [list(c.overrides) for c in configs]
    assert len(launched) > 1


@pytest.mark.parametrize(
    "override", ["seed=range(0,0)", "norm=glob(zzz)", "seed=range(0,3,0)"]
)
def test_a_sweep_without_values_is_refused(jobs, override):
    with pytest.raises(ConfigError) as error:
        jobs(override)
    assert str(error.value).startswith(f"{override}: ")
