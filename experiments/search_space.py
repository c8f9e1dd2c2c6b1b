"""What a search varies: the overrides of a command line as Optuna's distributions."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep

from experiments.errors import ConfigError
from experiments.sweep import merged, values_of

SEED = "seed"


@dataclasses.dataclass(frozen=True)
class Space:
    """`dimensions`: key -> Optuna's distribution, of what is searched.

    `overrides` are all of them, in order: pairs of a key and its texts, of which a
    dimension has none, a seed that is swept several and everything else one.
    """

    dimensions: dict[str, Any]
    overrides: tuple[tuple[str, tuple[str, ...]], ...]

    @classmethod
    def of(
        cls,
        params: Mapping[str, Any] | None,
        arguments: Sequence[str],
        parser: OverridesParser,
    ) -> "Space":
        """The space of an experiment's `params` and the overrides of a command line.

            a,b  choice(a,b)              one of them
            range(2,10,2)                 a whole number, in order; of fractions a choice
            interval(0,1)                 a number
            int(interval(1,8))            a whole number, both ends included
            tag(log,interval(1e-5,1))     by its logarithm

        A swept seed is no dimension, or the search would look for the luckiest one: every
        trial is run with each of them and the mean counts.

        Raises:
            ConfigError: nothing is left to search, or an interval is none.
        """
        dimensions, overrides = {}, []
        for override in merged(params, arguments, parser):
            key = override.get_key_element()
            if override.is_delete():
                overrides.append((key, (override.input_line,)))
            elif not override.is_sweep_override():
                text = override.get_value_element_as_str()
                overrides.append((key, (f"{key}={text}",)))
            elif key == SEED and override.is_discrete_sweep():
                texts = tuple(f"{key}={value}" for value in values_of(override))
                overrides.append((key, texts))
            else:
                dimensions[key] = _distribution(override)
                overrides.append((key, ()))
        if not dimensions:
            raise ConfigError(
                "hydra/sweeper=optuna: nothing to search; expected values as 1,2,3 or "
                "interval(0,1) for some key besides the seed"
            )
        return cls(dimensions, tuple(overrides))

    def jobs(self, values: Mapping[str, Any]) -> list[list[str]]:
        """The override lists of a trial: one, or one per seed."""
        texts = [own or (f"{key}={values[key]}",) for key, own in self.overrides]
        return [list(job) for job in itertools.product(*texts)]

    def corners(self) -> list[dict[str, Any]]:
        """The first value of every dimension, and each with another one in one place."""
        options = {key: _ends(d) for key, d in self.dimensions.items()}
        first = {key: values[0] for key, values in options.items()}
        return [first] + [
            {**first, key: value}
            for key, values in options.items()
            for value in values[1:]
        ]


def _distribution(override: Override):
    from optuna import distributions

    value = override.value()
    try:
        if isinstance(value, IntervalSweep):
            is_whole = isinstance(value.start, int) and isinstance(value.end, int)
            kind = distributions.FloatDistribution
            if is_whole:
                kind = distributions.IntDistribution
            return kind(value.start, value.end, log="log" in value.tags)
        texts = values_of(override)
        if isinstance(value, RangeSweep) and isinstance(value.range(), range):
            numbers = value.range()
            step = abs(numbers.step)
            return distributions.IntDistribution(min(numbers), max(numbers), step=step)
        return distributions.CategoricalDistribution(tuple(texts))
    except ValueError as error:
        raise ConfigError(f"{override.input_line}: {error}") from None


def _ends(distribution) -> list:
    choices = getattr(distribution, "choices", None)
    ends = [distribution.low, distribution.high] if choices is None else choices
    return list(dict.fromkeys(ends))
