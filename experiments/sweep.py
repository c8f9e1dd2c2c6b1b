"""A command line with commas as the list of jobs it stands for."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from experiments.compose import Composer, is_for_hydra
from experiments.errors import ConfigError


def combinations(
    params: Mapping[str, Any] | None,
    sweeps: Mapping[str, Mapping[str, Any]] | None,
    arguments: Sequence[str],
    parser: OverridesParser,
) -> list[list[str]]:
    """The override lists of a sweep, each job once.

    Args:
        params: override -> values, of the experiment.
        sweeps: several named sets of such params: the jobs are those of each, one set
            after the other, `params` applying to all.
        arguments: overrides of the command line: they win over both.

    Raises:
        ConfigError: an interval, a sweep without values, or one over experiments.
    """
    jobs = []
    for extra in dict(sweeps).values() if sweeps else [{}]:
        own = {**dict(params or {}), **dict(extra or {})}
        jobs += _product(merged(own, arguments, parser))
    return [list(job) for job in dict.fromkeys(jobs)]


def merged(
    params: Mapping[str, Any] | None, arguments: Sequence[str], parser: OverridesParser
) -> list[Override]:
    """The overrides of an experiment's params and of the command line, which wins.

    Raises:
        ConfigError: a sweep over experiments.
    """
    typed = parser.parse_overrides(list(arguments))
    for override in typed:
        if override.key_or_group == "experiment" and override.is_sweep_override():
            raise ConfigError(
                f"{override.input_line}: expected one experiment, since each brings its "
                "own sweep (give every one a command of its own)"
            )
    taken = {_place(override) for override in typed}
    own = parser.parse_overrides(
        [f"{key}={_text(value)}" for key, value in dict(params or {}).items()]
    )
    return [*(o for o in own if _place(o) not in taken), *typed]


def _product(overrides: Sequence[Override]) -> list[tuple[str, ...]]:
    choices: dict[str, list[str]] = {}
    for override in overrides:
        key = override.get_key_element()
        if override.is_delete():
            choices[key] = [override.input_line]
        elif not override.is_sweep_override():
            choices[key] = [f"{key}={override.get_value_element_as_str()}"]
        elif override.is_discrete_sweep():
            choices[key] = [f"{key}={v}" for v in values_of(override)]
        else:
            raise ConfigError(
                f"{override.input_line}: expected values to try, such as 1,2,3 or "
                "range(1,4); an interval needs a search (hydra/sweeper=optuna)"
            )
    return list(itertools.product(*choices.values()))


def values_of(override: Override) -> list[str]:
    """The values of a discrete sweep, as they are written on a command line.

    Raises:
        ConfigError: there is none.
    """
    try:
        values = list(override.sweep_string_iterator())
    except (ValueError, HydraException) as error:  # a range with a step of zero
        raise ConfigError(f"{override.input_line}: {error}") from None
    if not values:
        raise ConfigError(f"{override.input_line}: no values to try")
    return values


def _place(override: Override) -> tuple[str, str | None]:
    """What an override sets, whether it changes (`k=`), adds (`+k=`) or deletes (`~k`)."""
    return override.key_or_group, override.package


def _text(value: Any) -> str:
    """A value of a YAML file as it is written on a command line."""
    return "null" if value is None else str(value)


def expand(composer: Composer, overrides: Sequence[str]) -> list[list[str]]:
    """The jobs of a list of overrides, with the sweep of the experiment it names.

    Overrides of the `hydra` node belong to the composer and make no job.

    Raises:
        ConfigError: as `combinations`; it is a search, or the experiment has phases, and
            jobs depend on results.
    """
    own = [o for o in overrides if not is_for_hydra(o)]
    sweeper = composer.sweeper(own)
    if "n_trials" in sweeper:
        raise ConfigError(
            "hydra/sweeper=optuna: what a search tries depends on results; run it by "
            "launch.py -m"
        )
    if sweeper.get("phases"):
        raise ConfigError(
            "experiment: this one runs in phases, of which later ones depend on the "
            "results of earlier ones; run it by launch.py"
        )
    return combinations(
        sweeper.get("params"), sweeper.get("sweeps"), own, composer.parser
    )
