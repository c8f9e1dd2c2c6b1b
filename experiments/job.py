"""Between Hydra's idea of a job and ours: what launch.py and the plugins call."""

import gc
from collections.abc import Sequence

from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn, JobStatus
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from experiments import api
from experiments.compose import Composer, plain
from experiments.config import Config
from experiments.errors import ConfigError, RunFailed, UserError
from experiments.explain import explained, one_line, tracebacks_wanted
from experiments.group import plan
from experiments.members import Member
from experiments.released import as_typed

# All that a run needs has been imported: it is never garbage (see launch.py).
gc.freeze()
gc.enable()


def run_one(cfg: DictConfig) -> float | None:
    """The task function: one composed config, run as a group of one.

    Returns:
        What a search over configs minimizes; None for a task that makes no run.

    Raises:
        RunFailed: the run failed.
        SystemExit: likewise, or the config is wrong, if this is the only job. Hydra
            prints a line of its own about an ordinary exception.
    """
    alone = HydraConfig.get().mode == RunMode.RUN
    try:
        return _run_one(cfg, report=alone)
    except (UserError, RunFailed) as error:
        if alone and not tracebacks_wanted():
            raise SystemExit(one_line(error)) from None
        raise


def _run_one(cfg: DictConfig, *, report: bool) -> float | None:
    hydra = HydraConfig.get()
    overrides = OmegaConf.to_container(hydra.overrides.task)  # as typed, `${..}` too
    with explained(overrides):
        node = plain(cfg)
    overrides = as_typed(overrides)
    config = Config.parse(
        node,
        choices={
            k: v for k, v in hydra.runtime.choices.items() if not k.startswith("hydra/")
        },
        overrides=overrides,
    )
    if not report and api.is_listed(config):
        raise ConfigError("runtime.script: needs hydra/launcher=batched")
    members = api.run([config])
    if not members:
        return None
    (member,) = members
    if report and member.state != "busy":
        api.report([config])
    if not member.is_done:
        raise RunFailed(_failure(member))
    return member.objective


def check_all(loader, config: DictConfig, jobs: Sequence[Sequence[str]]) -> None:
    """Refuses a sweep with an impossible job before anything is created."""
    plan([c for c in _compose(loader, config, jobs) if api.makes_run(c)])


def composed(loader, config: DictConfig, job: Sequence[str]) -> Config:
    """The config of one job of a sweep."""
    return _compose(loader, config, [job])[0]


def run_all(loader, config: DictConfig, jobs: Sequence[Sequence[str]]):
    """Runs the jobs of a sweep together; one JobReturn each, in order."""
    configs = _compose(loader, config, jobs)
    by_run = {_key(m.config): m for m in api.run(configs)}
    returns = []
    for overrides, job in zip(jobs, configs, strict=True):
        returned = JobReturn()
        returned.overrides = list(overrides)
        returned.cfg = job
        returns.append(returned)
        if not api.makes_run(job):
            returned.working_dir = str(job.folder)
            returned.status = JobStatus.COMPLETED
            continue
        member = by_run[_key(job)]
        failed = not member.is_done
        returned.working_dir = str(member.directory.path)
        returned.status = JobStatus.FAILED if failed else JobStatus.COMPLETED
        returned.return_value = (
            RunFailed(_failure(member)) if failed else member.objective
        )
    return returns


def objective_of(returned: JobReturn) -> float:
    """What a job reached; NaN if it failed or diverged."""
    value = returned._return_value
    return value if isinstance(value, float) else float("nan")


def finish_sweep(returns: Sequence[JobReturn]) -> None:
    """Reports, also when some runs failed, and then says that they did.

    Raises:
        RunFailed: counts the failed runs.
    """
    configs = [
        r.cfg if isinstance(r.cfg, Config) else Config.parse(plain(r.cfg))
        for r in returns
    ]
    api.report(configs)
    failed = [r for r in returns if r.status != JobStatus.COMPLETED]
    for one in failed:
        error = one._return_value
        if isinstance(error, UserError):
            raise error
    if failed:
        raise RunFailed(
            f"{len(failed)} of {len(returns)} runs failed; each has its error.txt"
        )


_composers: dict[int, Composer] = {}


def _compose(loader, config: DictConfig, jobs: Sequence[Sequence[str]]) -> list[Config]:
    composer = _composers.get(id(loader))
    if composer is None:
        composer = Composer(
            loader,
            config.hydra.job.config_name,
            OmegaConf.to_container(config.hydra.overrides.hydra),
        )
        _composers[id(loader)] = composer
    return [composer.compose(job) for job in jobs]


def _key(config: Config) -> tuple[str, str]:
    return str(config.folder), config.identity("")


def _failure(member: Member) -> str:
    """Why a run has no result, in a line."""
    folder = str(member.directory.path)
    text = str(member.error or member.note or f"not done ({member.state})")
    return text if text.startswith(folder) else f"{folder}: {text}"
