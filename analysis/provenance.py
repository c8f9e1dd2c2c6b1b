"""Runs of other data or other code are variants of their own, never averaged."""

import collections
from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from analysis.text import count
from analysis.variants import SEPARATOR

SHOWN = 8  # characters of a hash


@dataclass(frozen=True)
class Origin:
    """What a run came from.

    Attributes:
        family: as in the frame.
        data: its `data.*` keys with their values. Where they are equal the data should
            be too; data that are made from a seed name it there.
        fingerprint: of the data it saw, or None.
        code: digest of the source files it ran (or their commit), or None.
    """

    family: str
    data: frozenset
    fingerprint: str | None
    code: str | None


def labels_apart(labels: Sequence[str], runs: Sequence[Origin]) -> list[str]:
    """The labels, with the fingerprint or the code where one label has two.

    What has the same label is averaged, and paired by seed.
    """
    named = list(labels)
    for name in ("fingerprint", "code"):
        keys = [
            (run.family, label, run.data if name == "fingerprint" else None)
            for run, label in zip(runs, named, strict=True)
        ]
        seen = collections.defaultdict(set)
        for key, run in zip(keys, runs, strict=True):
            seen[key] |= {getattr(run, name)} - {None}
        for i, (key, run) in enumerate(zip(keys, runs, strict=True)):
            value = getattr(run, name)
            if value and len(seen[key]) > 1:
                named[i] += f"{SEPARATOR}{name}={value[:SHOWN]}"
    return named


def mixed_lines(runs: pl.DataFrame) -> list[str]:
    """A line if one data config has given two data, and one if two codes were used.

    Args:
        runs: the frame of a folder, or some of its rows.
    """
    config = [c for c in runs.columns if c.startswith("config.data.")]
    kinds = (("data fingerprint", "data_fingerprint", config),)
    kinds += (("code version", "code_version", []),)
    lines = []
    for noun, column, within in kinds:
        known = runs.drop_nulls(column)
        n_values = pl.col(column).n_unique()
        if within:
            n_values = n_values.over(within)
        found = known.filter(n_values > 1)[column].to_list()
        if found:
            counts = collections.Counter(found)
            each = ", ".join(
                f"{value[:SHOWN]} ({count(n, 'run')})" for value, n in counts.items()
            )
            lines.append(f"{count(len(counts), noun)}: {each}")
    return lines
