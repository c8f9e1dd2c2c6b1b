"""Rows of choices in which every pair of choices that goes together occurs."""

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np

from experiments.compatibility.choices import (
    SIZES,
    Axis,
    Row,
    config_of,
    defaults,
    implied,
)
from experiments.compatibility.message import blamed, told
from experiments.compatibility.rules import refusals
from experiments.errors import ConfigError
from experiments.parts import Part

Pair = tuple[tuple[str, str | None], tuple[str, str | None]]  # (axis, choice) twice


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Why a row is refused, and the axes that have to do with it."""

    axes: tuple[str, ...]
    reason: str
    fails: bool = True


def verdict(row: Row) -> Verdict | None:
    """What is wrong among the choices of a row, whatever is chosen on other axes."""
    try:
        model = Part.parse(config_of(row, **SIZES)["model"], "model")
    except ConfigError as error:
        return Verdict(tuple(row), blamed(str(error), {**defaults(), **implied(row)}))
    for found in refusals(model):
        if set(found.keys) <= set(row):
            reason = told(found, model, row)
            return Verdict(found.keys, reason, found.fails)
    return None


def refused_pairs(axes: Sequence[Axis]) -> dict[Pair, Verdict]:
    """Every pair of choices of two axes that has no meaning."""
    found = {}
    for first, second in itertools.combinations(axes, 2):
        for a, b in itertools.product(first.choices, second.choices):
            refused = verdict({first.name: a, second.name: b})
            if refused is not None:
                found[(first.name, a), (second.name, b)] = refused
    return found


class Covering:
    """Greedy pairwise covering array; the same axes give the same rows.

    rows: each with a choice on every axis, each refused by nothing.
    refused: pair -> why.
    missing: pairs that are not refused, but occur in no row that was found.
    """

    def __init__(self, axes: Sequence[Axis]):
        self.axes = tuple(axes)
        self.refused = refused_pairs(axes)
        self._items = [(a.name, c) for a in axes for c in a.choices]
        index = {item: i for i, item in enumerate(self._items)}
        self._span = {a.name: [index[a.name, c] for c in a.choices] for a in axes}
        axis_of = np.array([i for i, a in enumerate(axes) for _ in a.choices])
        self._allowed = axis_of[:, None] != axis_of[None, :]
        for first, second in self.refused:
            i, j = index[first], index[second]
            self._allowed[i, j] = self._allowed[j, i] = False
        self._todo = self._allowed.copy()
        self._used = np.zeros(len(self._items), int)
        self._clashes: list[frozenset[int]] = []  # three choices or more
        self._index = index
        self.missing: list[Pair] = []
        self.rows: list[Row] = []
        while self._todo.any():
            self._cover(*np.argwhere(self._todo)[0])

    def _cover(self, i: int, j: int) -> None:
        """Adds a row with these two choices."""
        row = self._filled([i, j])
        if row is None:
            self.missing.append((self._items[i], self._items[j]))
            self._todo[i, j] = self._todo[j, i] = False
            return
        self._todo[np.ix_(row, row)] = False
        self._used[row] += 1
        chosen = self._chosen(row)
        self.rows.append({axis.name: chosen[axis.name] for axis in self.axes})

    def _filled(self, start: list[int]) -> list[int] | None:
        """A whole row, each choice the one that covers most; None if there is none."""
        order = [a.name for a in self.axes if a.name not in self._chosen(start)]
        stuck: set[str] = set()
        while True:
            row = list(start)
            for name in order:
                best = self._best(name, row)
                if best is None:
                    break
                row.append(best)
            if best is None:
                if name in stuck:
                    return None
                stuck.add(name)
                order = [name, *(other for other in order if other != name)]
                continue
            chosen = self._chosen(row)
            refused = verdict(chosen)
            if refused is None:
                return row
            clash = frozenset(self._index[a, chosen[a]] for a in refused.axes)
            assert clash not in self._clashes, refused
            self._clashes.append(clash)

    def _chosen(self, row: list[int]) -> Row:
        return dict(self._items[k] for k in row)

    def _best(self, axis: str, row: list[int]) -> int | None:
        span = [
            k
            for k in self._span[axis]
            if self._allowed[k, row].all()
            and not any(c <= {k, *row} for c in self._clashes)
        ]
        if not span:
            return None
        covered = self._todo[np.ix_(span, row)].sum(axis=1)
        # Of equals the one that was used least, then the first.
        return span[np.lexsort((np.arange(len(span)), self._used[span], -covered))[0]]
