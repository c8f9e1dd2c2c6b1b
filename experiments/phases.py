"""Sweeps in phases: later ones take numbers that earlier ones found to be best.

In an experiment, `hydra.sweeper.phases` is a mapping of phase -> sets of parameters, in
order. A value of a set may be, instead of numbers to try,

    optimizer.learning_rate: {best: optimizer.learning_rate, where: [norm=rmsnorm]}

the value of `best` with the lowest objective among the earlier runs that equal this job
after its overrides are replaced by those in `where` (`~key` drops one). Equal means the
same overrides but for seed, task, tags, name and runtime; the mean over seeds counts.
The first phase that tried several values decides (else the first with any), so what
later ones measured at the chosen value, with other seeds, has no say. `times: 4` takes
four times that value.
"""

import collections
import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser

from experiments.errors import ConfigError
from experiments.sweep import combinations

# What may differ between a run that tunes and the run that uses its result.
OTHERWISE = (
    "seed",
    "task",
    "tags",
    "name",
    "runtime",
    "log_every",
    "logger",
    "dispatch",
)


@dataclasses.dataclass(frozen=True)
class Finished:
    """A job that ran: its overrides, what it reached (NaN: no result) and when."""

    overrides: tuple[str, ...]
    objective: float
    phase: int = 0


@dataclasses.dataclass(frozen=True)
class Best:
    """Take for `key` the best value that earlier runs had for `of`."""

    key: str
    of: str
    where: tuple[str, ...] = ()
    times: float = 1.0

    @classmethod
    def parse(cls, key: str, node: Mapping[str, Any]) -> "Best":
        """Checks a mapping given as the value of a parameter.

        Raises:
            ConfigError: not {best: KEY} with `where: [OVERRIDE, ...]` or without.
        """
        where, times = node.get("where") or [], node.get("times", 1.0)
        is_known = {"best"} <= set(node) <= {"best", "where", "times"}
        if (
            not is_known
            or isinstance(where, str)
            or not isinstance(times, (int, float))
        ):
            raise ConfigError(
                f"{key}: expected {{best: KEY, where: [OVERRIDE, ...], times: NUMBER}}, "
                f"got {dict(node)}"
            )
        return cls(key, str(node["best"]), tuple(str(o) for o in where), times)

    def among(self, job: Sequence[str], finished: Iterable[Finished]) -> str:
        """`times` the value with the lowest mean objective; a diverged run has none.

        Raises:
            ConfigError: no earlier run is comparable, or none of them has a result.
        """
        wanted = as_mapping(job)
        for override in self.where:
            wanted.pop(override.lstrip("~").partition("=")[0], None)
            if not override.startswith("~"):
                wanted |= as_mapping([override])
        like = _comparable(wanted, self.of)
        found = []
        for one in finished:
            own = as_mapping(one.overrides)
            if self.of in own and _comparable(own, self.of) == like:
                found.append((one.phase, own[self.of], one.objective))
        tried = collections.defaultdict(set)
        for phase, value, _ in found:
            tried[phase].add(value)
        several = [phase for phase, values in tried.items() if len(values) > 1]
        deciding = min(several or tried, default=None)
        objectives = collections.defaultdict(list)
        for phase, value, objective in found:
            if phase == deciding:
                objectives[value].append(objective)
        asked = " ".join(f"{k}={v}" for k, v in like.items())
        if not objectives:
            raise ConfigError(f"{self.key}: no earlier run has {self.of} and {asked}")
        means = {value: math.fsum(x) / len(x) for value, x in objectives.items()}
        usable = {value: mean for value, mean in means.items() if math.isfinite(mean)}
        if not usable:
            raise ConfigError(
                f"{self.key}: no earlier run with {asked} came to an end with any "
                f"{self.of} of {', '.join(means)}"
            )
        best = min(usable, key=usable.get)
        return best if self.times == 1 else f"{self.times * float(best):g}"


def as_mapping(overrides: Iterable[str]) -> dict[str, str]:
    """Overrides by key, whether they change or add; the last of a key counts."""
    pairs = (o.lstrip("+").partition("=") for o in overrides)
    return {key: value for key, _, value in pairs}


def _comparable(overrides: Mapping[str, str], of: str) -> dict[str, str]:
    kept = {
        key: value
        for key, value in overrides.items()
        if key != of and key.split(".")[0] not in OTHERWISE
    }
    return dict(sorted(kept.items()))


def phase_jobs(
    sets: Mapping[str, Mapping[str, Any]],
    finished: Sequence[Finished],
    arguments: Sequence[str],
    parser: OverridesParser,
    params: Mapping[str, Any] | None = None,
) -> list[list[str]]:
    """The jobs of one phase, given the jobs of those before it.

    Args:
        sets: name -> override -> values, or a mapping that asks for the best.
        params: override -> values, of all sets.
        finished: jobs of the earlier phases.
        arguments: overrides of the command line; they win, also over what was tuned.

    Raises:
        ConfigError: as `combinations`, `Best.parse` and `Best.among`.
    """
    typed = {o.key_or_group for o in parser.parse_overrides(list(arguments))}
    jobs = []
    for extra in sets.values():
        merged = {**dict(params or {}), **dict(extra or {})}
        asked = [
            Best.parse(key, value)
            for key, value in merged.items()
            if isinstance(value, Mapping)
        ]
        plain = {k: v for k, v in merged.items() if not isinstance(v, Mapping)}
        asked = [best for best in asked if best.key not in typed]
        # One after the other: a job holds what was found for it so far.
        for job in combinations(plain, None, arguments, parser):
            for best in asked:
                job = [*job, f"{best.key}={best.among(job, finished)}"]
            jobs.append(tuple(job))
    return [list(job) for job in dict.fromkeys(jobs)]


def planned_jobs(
    phases: Mapping[str, Mapping[str, Any]],
    arguments: Sequence[str],
    parser: OverridesParser,
    params: Mapping[str, Any] | None = None,
) -> list[list[str]]:
    """The jobs of all phases as if the first value of each had been best: to check them.

    Raises:
        ConfigError: as `phase_jobs`.
    """
    planned: list[Finished] = []
    for i, sets in enumerate(phases.values()):
        jobs = phase_jobs(sets, planned, arguments, parser, params)
        planned += [Finished(tuple(job), 0.0, phase=i) for job in jobs]
    return [list(one.overrides) for one in planned]
