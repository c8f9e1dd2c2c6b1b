"""hydra/sweeper=optuna: a search over configs, a batch of trials at a time.

Optuna is asked for some trials, these train together like the runs of any sweep, and it
is told what they reached. The study lies in the output folder. What a trial is depends on
the study before its batch and on nothing else, so a search that was killed, at whatever
moment, and started again makes the trials of one that was not.
"""

import contextlib
import dataclasses
import fcntl
import importlib.util
import json
import math
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import yaml
from hydra.core.utils import JobReturn, JobStatus
from hydra.utils import instantiate

from experiments.config import Config
from experiments.errors import ConfigError, UserError
from experiments.search_space import Space

STUDY, RESULTS = "study.db", "optimization_results.yaml"

# Overrides that may differ between two launches of a search: no part of what a run is.
FREE = ("runtime", "name", "tags", "log_every", "logger", "dispatch")


def check_installed() -> None:
    """Refuses a search without Optuna.

    Raises:
        ConfigError: names the extra that brings it.
    """
    if importlib.util.find_spec("optuna") is None:
        raise ConfigError(
            "hydra/sweeper=optuna: needs the package optuna: pip install "
            "'blocklab[optuna]'"
        )


@dataclasses.dataclass(frozen=True)
class Search:
    """A study over a space, and what runs its trials.

    Args:
        space: what is varied.
        sampler: config of an Optuna sampler; it gets a seed of its own for every trial.
        n_trials: of the whole study, those of earlier launches included.
        n_jobs: trials that are asked at a time and train together.
        seed: of the sampler.
        config: of the first values of the space.
        launch: runs jobs; a JobReturn for each.
        check: refuses jobs that cannot be, by ConfigError.
        say: prints a line.
    """

    space: Space
    sampler: dict[str, Any]
    n_trials: int
    n_jobs: int
    seed: int
    config: Config
    launch: Callable[[list[list[str]]], Sequence[JobReturn]]
    check: Callable[[list[list[str]]], None]
    say: Callable[[str], None]

    def __post_init__(self):
        for key in ("n_trials", "n_jobs"):
            value = getattr(self, key)
            if value < 1:
                raise ConfigError(
                    f"hydra.sweeper.{key}: must be at least 1, got {value}"
                )
        for key in ("script", "shard"):
            if getattr(self.config.runtime, key) is not None:
                raise ConfigError(
                    f"runtime.{key}: not for a search, which is one launch"
                )
        if hasattr(self.config.task.cls, "answer"):
            raise ConfigError(
                f"task: {self.config.task.name} makes no run that a search could compare"
            )

    @property
    def folder(self) -> pathlib.Path:
        return self.config.folder

    def run(self) -> list[JobReturn]:
        """Runs what is left of the study; jobs of all its trials where nothing is.

        A trial that diverged is told as infinitely bad, one that cannot be built as
        failed. One whose run failed is not told: the next launch makes it again, as it
        does in any sweep. After a batch that failed as a whole no other is asked.

        Raises:
            UserError: another launcher is at work on the study, or it is of another
                search.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with _alone(self.folder):
            study = self._study()
            returns = []
            batch = self._batch(study, _open(study))
            while batch:
                done = self._make(study, batch)
                returns += done
                self._write(study)
                if done and not any(_completed(one) for one in done):
                    break
                batch = self._batch(study, [])
            return returns or self.launch(self._all_jobs(study))

    def _study(self):
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        study = optuna.create_study(
            storage=f"sqlite:///{(self.folder / STUDY).absolute()}",
            study_name="search",
            direction="minimize",
            load_if_exists=True,
        )
        described = json.loads(json.dumps(self._described()))
        before = study.user_attrs.get("search")
        if before is None:
            study.set_user_attr("search", described)
        elif before != described:
            raise UserError(
                f"{self.folder / STUDY}: {_difference(before, described)} "
                "(name=... begins another)"
            )
        return study

    def _described(self) -> dict[str, Any]:
        """What must be equal for a launch to go on with a study."""
        fixed = [text for _, own in self.space.overrides for text in own]
        return {
            "dimensions": {k: str(d) for k, d in self.space.dimensions.items()},
            "overrides": sorted(o for o in fixed if not _is_free(o)),
            "sampler": self.sampler,
            "seed": self.seed,
            "config": self.config.identity(""),
        }

    def _batch(self, study, trials: list) -> list:
        """Trials that were asked before and never told, filled up to a whole batch."""
        n = len(study.get_trials(deepcopy=False))
        end = min((n // self.n_jobs + 1) * self.n_jobs, self.n_trials)
        if trials and n % self.n_jobs == 0:
            end = n
        for number in range(n, end):
            study.sampler = instantiate(self.sampler, seed=self.seed + number)
            trials.append(study.ask(self.space.dimensions))
        return trials

    def _make(self, study, batch: list) -> list[JobReturn]:
        """Runs a batch and tells what came out; nothing is told before all is run."""
        import optuna

        jobs, impossible = {}, {}
        for trial in batch:
            own = self.space.jobs(trial.params)
            try:
                self.check(own)
                jobs[trial.number] = own
            except ConfigError as error:
                impossible[trial.number] = str(error)
        returns = list(self.launch([job for own in jobs.values() for job in own]))
        left = iter(returns)
        results = {number: [next(left) for _ in own] for number, own in jobs.items()}
        for number, reason in impossible.items():
            self.say(f"trial {number} cannot be: {reason}")
            study.tell(number, state=optuna.trial.TrialState.FAIL)
        for number, own in results.items():
            if all(map(_completed, own)):
                study.tell(number, _mean(own))
        return returns

    def _all_jobs(self, study) -> list[list[str]]:
        trials = study.get_trials(deepcopy=False)
        told = [t for t in trials if t.value is not None]
        return [job for t in told for job in self.space.jobs(t.params)]

    def _write(self, study) -> None:
        """What was found so far, for eyes: replaced as a whole after every batch."""
        trials = study.get_trials(deepcopy=False)
        finite = [t for t in trials if t.value is not None and math.isfinite(t.value)]
        best = min(finite, key=lambda t: t.value, default=None)
        node = {
            "name": "optuna",
            "best_trial": best and best.number,
            "best_value": best and best.value,
            "best_params": best and dict(best.params),
            "trials": [
                {
                    "number": t.number,
                    "state": _state(t),
                    "value": t.value if t in finite else None,
                    "params": dict(t.params),
                }
                for t in trials
            ],
        }
        temporary = self.folder / f".{RESULTS}.tmp"
        temporary.write_text(yaml.safe_dump(node, sort_keys=False, allow_unicode=True))
        temporary.replace(self.folder / RESULTS)
        line = f"{len(trials)} of {self.n_trials} trials"
        if best is not None:
            params = " ".join(f"{k}={v}" for k, v in best.params.items())
            line += f"; best {best.value:.4f}, trial {best.number}: {params}"
        self.say(line)


def first_values(
    space: Space, check: Callable[[list[list[str]]], None]
) -> list[list[str]]:
    """The jobs of the space's first values, once its corners have been composed.

    So that a choice that there is not is found before anything runs. A corner that cannot
    be built is met as a trial, if at all.

    Raises:
        ConfigError: the first values cannot be run.
    """
    first, *others = space.corners()
    check(space.jobs(first))
    for corner in others:
        with contextlib.suppress(ConfigError):
            check(space.jobs(corner))
    return space.jobs(first)


@contextlib.contextmanager
def _alone(folder: pathlib.Path):
    """Two launchers would take each other's trials for those of one that was killed."""
    with (folder / ".study.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"{folder / STUDY}: another launcher is at work on this search"
            ) from None
        yield


def _open(study) -> list:
    """Trials that were asked and not told."""
    trials = study.get_trials(deepcopy=False)
    return [t for t in trials if not t.state.is_finished()]


def _completed(returned: JobReturn) -> bool:
    return returned.status == JobStatus.COMPLETED


def _mean(returns: Sequence[JobReturn]) -> float:
    """Mean objective over seeds; infinite if one diverged."""
    values = [float(one.return_value) for one in returns]
    mean = math.fsum(values) / len(values)
    return mean if math.isfinite(mean) else math.inf


def _state(trial) -> str:
    """open: not told yet; impossible: no such model."""
    if not trial.state.is_finished():
        return "open"
    if trial.value is None:
        return "impossible"
    return "completed" if math.isfinite(trial.value) else "diverged"


def _is_free(override: str) -> bool:
    return override.lstrip("+~").partition("=")[0].split(".")[0] in FREE


def _difference(before: dict[str, Any], now: dict[str, Any]) -> str:
    """What another search was about, in words."""
    for key in ("dimensions", "overrides", "sampler", "seed"):
        old, new = before.get(key), now[key]
        if old != new and isinstance(new, dict) and isinstance(old, dict):
            name = next(k for k in {**new, **old} if old.get(k) != new.get(k))
            old, new, key = old.get(name), new.get(name), name
        if old != new:
            return f"this search was begun with {key} {old}, got {new}"
    return "this search was begun with another config"
