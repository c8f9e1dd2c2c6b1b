"""Cutting a list of kinds of layers into repeated patterns."""

import numpy as np
import pytest

from blocks.segments import LONGEST_PERIOD, Segment, segments


def cut(kinds):
    return [(s.start, s.period, s.repeats) for s in segments(kinds)]


@pytest.mark.parametrize(
    "kinds, expected",
    [
        ("aaaa", [(0, 1, 4)]),
        ("a", [(0, 1, 1)]),
        ("ab", [(0, 1, 1), (1, 1, 1)]),
        ("llgllgl", [(0, 3, 2), (6, 1, 1)]),
        ("dmmm", [(0, 1, 1), (1, 1, 3)]),
        ("pppqqqqqqqqq", [(0, 1, 3), (3, 1, 9)]),
        ("abab", [(0, 2, 2)]),
        # Gemma 3: five local layers, one global.
        (4 * "lllllg" + "ll", [(0, 6, 4), (24, 1, 2)]),
        # A pattern that covers more wins over a shorter one that begins it.
        ("aabaab", [(0, 3, 2)]),
    ],
)
def test_known_patterns(kinds, expected):
    assert cut(kinds) == expected


def test_no_layers_are_no_segments():
    assert segments([]) == []


def test_a_period_longer_than_the_longest_is_not_looked_for():
    kinds = [*range(LONGEST_PERIOD + 1)] * 2
    assert all(s.repeats == 1 for s in segments(kinds))
    assert cut([*range(LONGEST_PERIOD)] * 2) == [(0, LONGEST_PERIOD, 2)]


@pytest.mark.parametrize("seed", range(20))
def test_every_layer_is_in_one_place_and_a_place_has_one_kind(seed):
    rng = np.random.default_rng(seed)
    kinds = list(rng.integers(0, 3, rng.integers(1, 30)))
    found, stop = [], 0
    for segment in segments(kinds):
        assert segment.start == stop
        stop = segment.stop
        for position in range(segment.period):
            layers = segment.layers(position)
            assert len(layers) == segment.repeats
            assert len({kinds[i] for i in layers}) == 1
            found += layers
    assert sorted(found) == list(range(len(kinds)))


def test_layers_of_a_position_are_one_period_apart():
    segment = Segment(start=2, period=3, repeats=2)
    assert [list(segment.layers(p)) for p in range(3)] == [[2, 5], [3, 6], [4, 7]]
    assert segment.stop == 8
