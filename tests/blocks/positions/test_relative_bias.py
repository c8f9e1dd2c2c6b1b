"""Relative positions in buckets, as T5 has them."""

import math

import numpy as np
import pytest
from flax import nnx

from blocks.inits.normal import Normal
from blocks.positions.relative_bias import RelativeBias, buckets


def bucket(relative, n_buckets, max_distance):
    """arXiv 1910.10683 section 2.1, in words of its code: one distance at a time."""
    half, distance = n_buckets // 2, abs(relative)
    exact = half // 2
    if distance >= exact:
        share = math.log(distance / exact) / math.log(max_distance / exact)
        # Distances on the edge of a bucket are those of float32.
        distance = min(exact + int(share * (half - exact) + 1e-6), half - 1)
    return distance + (half if relative > 0 else 0)


@pytest.mark.parametrize("n_buckets, max_distance", [(32, 128), (8, 7), (4, 20)])
def test_buckets_are_those_of_one_distance_at_a_time(n_buckets, max_distance):
    seq = 200
    found = buckets(seq, n_buckets, max_distance)
    for i in (0, 77, seq - 1):
        wanted = [bucket(j - i, n_buckets, max_distance) for j in range(seq)]
        np.testing.assert_array_equal(found[i], wanted)
    assert set(found.ravel()) == set(range(n_buckets)) - {n_buckets // 2}


def test_buckets_of_t5():
    """To the left 0..7 each have their own, 16 is the third shared, from 91 the last."""
    row = buckets(300, 32, 128)[150]
    left = row[150::-1]
    assert list(left[:9]) == [0, 1, 2, 3, 4, 5, 6, 7, 8]
    assert left[15] == 9
    assert left[16] == 10
    assert left[90] == 14
    assert (left[91:] == 15).all()
    assert (row[151:] == left[1:150] + 16).all()


def test_the_bias_is_the_row_of_the_bucket_for_every_head():
    bias = RelativeBias(3, n_buckets=8, max_distance=7, init=Normal(), rngs=nnx.Rngs(0))
    found = np.asarray(bias(5))
    table, at = np.asarray(bias.table[...]), buckets(5, 8, 7)
    assert found.shape == (1, 3, 5, 5)
    for head in range(3):
        np.testing.assert_array_equal(found[0, head], table[at, head])


@pytest.mark.parametrize(
    "wrong, told",
    [
        ({"n_buckets": 6}, "n_buckets must be a multiple of 4, got 6"),
        (
            {"n_buckets": 8, "max_distance": 2},
            "max_distance must be above .* = 2, got 2",
        ),
    ],
)
def test_buckets_that_no_distance_has_are_refused(wrong, told):
    with pytest.raises(ValueError, match=told):
        RelativeBias.check(**wrong)
