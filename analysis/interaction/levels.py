"""Which level of a factor a run is of, by its choices and its config."""

import math

import polars as pl

from analysis.interaction.design import Factor


def column_of(runs: pl.DataFrame, key: str) -> str:
    """The column of a Hydra group or a dotted config path.

    Raises:
        ValueError: no run has it.
    """
    for column in (f"choice.{key}", f"config.{key}"):
        if column in runs.columns:
            return column
    raise ValueError(f"{key!r} is no choice and no config key of these runs")


def place_of(run: dict, factor: Factor, columns: list[str]) -> str | None:
    """The level that `tags.cell` names, else the one that asks for most and is met."""
    named = run.get(f"config.tags.cell.{factor.name}")
    if named is not None:
        label = spelled(named)
        if label not in factor.labels:
            raise ValueError(f"tags.cell: {factor.name} has no level {label!r}")
        return label
    met = [
        level
        for level in factor.levels
        if level.wanted and _is_met(run, level.wanted, columns)
    ]
    most = max((len(level.wanted) for level in met), default=0)
    best = [level.label for level in met if len(level.wanted) == most]
    if len(best) > 1:
        raise ValueError(f"{factor.name}: is {best[0]!r} as much as {best[1]!r}")
    return best[0] if best else None


def _is_met(run: dict, wanted: dict, columns: list[str]) -> bool:
    for key, value in wanted.items():
        names = [n for n in (f"choice.{key}", f"config.{key}") if n in columns]
        if not names or not same(run[names[0]], value):
            return False
    return True


def same(found, wanted) -> bool:
    """Numbers by value; `0.5` of a command line is the number too."""
    a, b = number_of(found), number_of(wanted)
    if a is not None and b is not None:
        return math.isclose(a, b, rel_tol=1e-9)
    return spelled(found) == spelled(wanted)


def number_of(value) -> float | None:
    try:
        return None if value is None or isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        return None


def spelled(value) -> str:
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def order_of(label: str) -> tuple:
    number = number_of(label)
    return (number is None, number or 0.0, label)
