import math

import numpy as np
import pytest

from analysis.stats import (
    geometric_interval,
    jackknife_interval,
    paired_difference,
    t_interval,
)


def test_half_width_is_that_of_the_t_table():
    # 1..5: SD sqrt(2.5); t_{4, 0.975} = 2.776445 in any printed table.
    got = t_interval([1, 2, 3, 4, 5])
    half = 2.776445 * math.sqrt(2.5 / 5)
    assert (got.mean, got.n) == (3, 5)
    np.testing.assert_allclose([got.half_width, got.low], [half, 3 - half], rtol=1e-6)


def test_one_seed_has_a_mean_and_no_interval():
    got = t_interval([2.5])
    assert got.mean == 2.5
    assert not got.has_interval
    assert all(map(math.isnan, (got.low, got.high, got.half_width, got.sd)))


def test_geometric_interval_is_asymmetric_around_the_geometric_mean():
    got = geometric_interval([1.0, 10.0, 100.0])
    np.testing.assert_allclose(got.mean, 10, rtol=1e-12)
    # Logs -a, 0, a with a = ln 10: SD a, t_{2, 0.975} = 4.302653.
    factor = math.exp(4.302653 * math.log(10) / math.sqrt(3))
    np.testing.assert_allclose(got.low, 10 / factor, rtol=1e-6)
    np.testing.assert_allclose(got.high, 10 * factor, rtol=1e-6)


def test_pairing_removes_what_a_seed_does_to_both():
    first = {0: 1.0, 1: 5.0, 2: 9.0, 7: 100.0}
    second = {2: 9.6, 0: 1.4, 1: 5.5, 8: -100.0}
    got = paired_difference(first, second)
    assert got.n == 3
    np.testing.assert_allclose(got.mean, 0.5, rtol=1e-12)
    # Differences 0.4, 0.5, 0.6: SD 0.1, t_{2, 0.975} = 4.302653.
    np.testing.assert_allclose(got.half_width, 0.430265 / math.sqrt(3), rtol=1e-5)


@pytest.mark.parametrize("n", [3, 8])
def test_interval_covers_the_truth_as_often_as_it_says(n):
    rng = np.random.default_rng(0)
    draws = rng.normal(2.0, 0.5, (2000, n))
    hits = [(i := t_interval(d)).low <= 2.0 <= i.high for d in draws]
    # Binomial SD of the rate is 0.005: this is 3 of them.
    assert abs(np.mean(hits) - 0.95) < 0.015


def test_refuses_what_has_no_mean():
    with pytest.raises(ValueError, match="at least one value"):
        t_interval([])
    with pytest.raises(ValueError, match="finite, got nan"):
        t_interval([1.0, math.nan])
    with pytest.raises(ValueError, match=r"positive, got 0\.0"):
        geometric_interval([1.0, 0.0])
    with pytest.raises(ValueError, match="no seed in common"):
        paired_difference({0: 1.0}, {1: 1.0})
    with pytest.raises(ValueError, match="level"):
        t_interval([1.0, 2.0], level=95)


def test_jackknife_of_a_mean_is_the_t_interval():
    # Pseudo-values of a mean are the values themselves.
    values = np.array([1.0, 4.0, 9.0, 16.0])
    got, want = jackknife_interval(values, np.mean), t_interval(values)
    np.testing.assert_allclose(
        [got.mean, got.low, got.high, got.sd], [want.mean, want.low, want.high, want.sd]
    )
    assert got.n == 4


def test_jackknife_without_an_interval():
    assert not jackknife_interval(np.array([3.0]), np.mean).has_interval
    infinite = jackknife_interval(np.array([1.0, 2.0]), lambda _: np.inf)
    assert infinite.mean == np.inf
    assert np.isnan(infinite.half_width)
    with pytest.raises(ValueError, match="at least one row"):
        jackknife_interval(np.array([]), np.mean)
