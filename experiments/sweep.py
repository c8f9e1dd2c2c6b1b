"""A command line with commas as the list of jobs it stands for."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser

from experiments.compose import Composer
from experiments.errors import ConfigError


def combinations(
    params: Mapping[str, Any] | None,
    sweeps: Mapping[str, Mapping[str, Any]] | None,
    arguments: Sequence[str],
    parser: OverridesParser,
) -> list[list[str]]:
    """The override lists of a sweep.

    Args:
        params: override -> values, of the experiment.
        sweeps: several named sets of such params: the jobs are those of each, one set
            after the other, `params` applying to all.
        arguments: overrides of the command line: they win over both.
    """
    named = dict(sweeps or {})
    jobs = []
    for extra in named.values() if named else [{}]:
        merged = {**dict(params or {}), **dict(extra)}
        texts = [f"{key}={value}" for key, value in merged.items()]
        jobs += _product([*texts, *arguments], parser)
    return [list(job) for job in dict.fromkeys(tuple(job) for job in jobs)]


def _product(texts: Sequence[str], parser: OverridesParser) -> list[list[str]]:
    choices: dict[str, list[str]] = {}
    for override in parser.parse_overrides(list(texts)):
        key = override.get_key_element()
        if not override.is_sweep_override():
            choices[key] = [f"{key}={override.get_value_element_as_str()}"]
        elif override.is_discrete_sweep():
            choices[key] = [f"{key}={v}" for v in override.sweep_string_iterator()]
        else:
            raise ConfigError(
                f"{override.input_line}: expected values to try, such as 1,2,3 or "
                "range(1,4); an interval needs a search (hydra/sweeper=optuna)"
            )
        if override.is_delete():
            choices[key] = [key]
    return [list(job) for job in itertools.product(*choices.values())]


def expand(composer: Composer, overrides: Sequence[str]) -> list[list[str]]:
    """The jobs of a list of overrides, with the sweep of the experiment it names."""
    own = [o for o in overrides if not o.startswith("hydra")]
    sweeper = composer.sweeper(own)
    return combinations(
        sweeper.get("params"), sweeper.get("sweeps"), own, composer.parser
    )
