import math

import numpy as np
import pytest
from scipy import stats

from analysis.paired import (
    bootstrap_interval,
    combine,
    holm,
    one_minus,
    paired_ratio,
    power,
    seeds_for_power,
    sign_flip_p_value,
    smallest_effect,
    t_p_value,
)
from analysis.stats import t_interval

# Extra hours of sleep of ten patients under two drugs; Student, Biometrika 6 (1908) 20.
SLEEP = (
    (0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0),
    (1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4),
)
# Darwin's maize, crossed minus self-fertilized, eighths of an inch; R. A. Fisher, The
# Design of Experiments (1935), sections 17 and 21.
MAIZE = (49, -67, 8, 16, 6, 23, 28, 41, 14, 29, 56, 24, 75, 60, -48)


def test_paired_t_test_of_students_sleep_data():
    first, second = (dict(enumerate(values)) for values in SLEEP)
    gap = combine([(1, second), (-1, first)])
    found = t_interval(list(gap.values()))
    # R, t.test(extra ~ group, paired = TRUE): p 0.002833, 0.7001142 to 2.4598858.
    assert t_p_value(list(gap.values())) == pytest.approx(0.002833, abs=5e-7)
    assert (found.low, found.high) == pytest.approx((0.7001142, 2.4598858), abs=5e-8)


def test_p_is_that_of_scipy_and_of_no_scatter():
    x = [0.3, -0.1, 0.25, 0.4]
    assert t_p_value(x) == pytest.approx(stats.ttest_1samp(x, 0).pvalue, rel=1e-12)
    assert t_p_value([0.5, 0.5]) == 0
    assert t_p_value([0.0, 0.0]) == 1
    assert math.isnan(t_p_value([0.5]))


def test_sign_flips_are_fishers_of_the_maize():
    # Section 21: 863 of 32,768 patterns are as large on one side.
    assert sign_flip_p_value(MAIZE) == 2 * 863 / 32768


@pytest.mark.parametrize("n, smallest", [(1, 1), (3, 0.25), (5, 0.0625), (6, 0.03125)])
def test_smallest_sign_flip_p_is_two_over_all_patterns(n, smallest):
    assert sign_flip_p_value([0.1 * (i + 1) for i in range(n)]) == smallest


def test_drawn_sign_flips_agree_with_the_t_test():
    x = np.random.default_rng(1).normal(0.4, 1, 30)
    found = sign_flip_p_value(x)
    assert found == sign_flip_p_value(x)
    # 10,000 patterns: SD of the estimate below 0.003 here.
    assert found == pytest.approx(t_p_value(x), abs=0.012)


def test_sign_flips_keep_their_level_under_no_effect():
    rng = np.random.default_rng(0)
    rejected = [sign_flip_p_value(rng.standard_t(3, 6)) <= 0.05 for _ in range(3000)]
    # Of six values the attainable level is 2 / 64; SD of the rate 0.0032.
    assert np.mean(rejected) == pytest.approx(2 / 64, abs=0.0096)


def test_interval_of_an_interaction_covers_what_was_put_in():
    rng = np.random.default_rng(4)
    hits = []
    for _ in range(1500):
        seed = rng.normal(0, 1, 4)  # does the same to all four cells
        cells = [dict(enumerate(seed + rng.normal(m, 0.1, 4))) for m in (0, 0, 0, 0.3)]
        found = combine(list(zip((1, -1, -1, 1), cells, strict=True)))
        interval = t_interval(list(found.values()))
        hits.append(interval.low <= 0.3 <= interval.high)
    # SD of the rate 0.0056.
    assert np.mean(hits) == pytest.approx(0.95, abs=0.017)


def test_combination_is_over_shared_seeds_only():
    assert combine([(2, {0: 1, 1: 5}), (-1, {1: 3, 2: 9})]) == {1: 7}


def test_holm_is_the_worked_example():
    # Wikipedia, "Holm-Bonferroni method"; statsmodels 0.15 multipletests agrees.
    p = {"H1": 0.01, "H2": 0.04, "H3": 0.03, "H4": 0.005}
    want = {"H1": 0.03, "H2": 0.06, "H3": 0.06, "H4": 0.02}
    assert holm(p) == pytest.approx(want)


def test_holm_does_not_count_what_was_not_measured():
    found = holm({"a": 0.02, "b": math.nan, "c": 0.6})
    assert found["a"] == pytest.approx(0.04)
    assert math.isnan(found["b"])
    assert found["c"] == pytest.approx(0.6)


def test_power_is_that_of_statsmodels():
    # statsmodels 0.15, TTestPower().power(d, n, 0.05).
    assert power(1.0, 1.0, 5) == pytest.approx(0.4013899173717948, rel=1e-9)
    assert power(-4.0, 2.0, 3) == pytest.approx(0.4707494312784346, rel=1e-9)
    assert power(0.02, 0.1, 8) == pytest.approx(0.07819945544266972, rel=1e-9)
    assert power(100.0, 1.0, 4) == pytest.approx(1)


def test_seeds_for_power_are_those_of_the_tables():
    # Any table of the paired t test: d = 0.5 needs 34 (33.37 in statsmodels).
    assert seeds_for_power(1.0, 0.5) == 34
    assert seeds_for_power(2.0, -1.0) == 34
    assert seeds_for_power(1e-4, 1.0) == 2
    assert seeds_for_power(0.0, 1.0) == 2
    assert seeds_for_power(math.nan, 1.0) is None
    assert seeds_for_power(1.0, 0.0) is None
    assert seeds_for_power(1.0, 1e-4) is None


def test_smallest_effect_is_that_of_statsmodels():
    # TTestPower().solve_power(nobs=n, power=0.8, alpha=0.05) for n = 2, 3, 4, 5, 8.
    want = [11.549889754978167, 3.264043552819638, 2.1279493431921157]
    want += [1.6819970833232674, 1.156035271959959]
    found = [smallest_effect(1.0, n) for n in (2, 3, 4, 5, 8)]
    assert found == pytest.approx(want, rel=1e-6)
    assert smallest_effect(0.0, 3) == 0
    assert math.isnan(smallest_effect(1.0, 1))


@pytest.mark.parametrize(
    "n, wanted",
    # Four unpaired cells of SD 0.01, 0.02 and 0.05: an interaction scatters by twice that.
    [
        (3, (0.065, 0.13, 0.326)),
        (5, (0.0336, 0.0673, 0.168)),
        (8, (0.0231, 0.0462, 0.116)),
    ],
)
def test_smallest_interaction_of_three_five_and_eight_seeds(n, wanted):
    found = [smallest_effect(2 * sigma, n) for sigma in (0.01, 0.02, 0.05)]
    assert found == pytest.approx(wanted, rel=5e-3)


def test_bootstrap_repeats_and_holds_the_mean():
    rows = np.random.default_rng(2).normal(3, 1, (40, 1))
    first = bootstrap_interval(rows, lambda m: m[..., 0])
    assert first == bootstrap_interval(rows, lambda m: m[..., 0])
    # Of 40 values the percentiles are near the normal interval.
    half = 1.96 * rows.std() / math.sqrt(40)
    want = (rows.mean() - half, rows.mean() + half)
    assert first == pytest.approx(want, abs=0.03)
    assert all(map(math.isnan, bootstrap_interval(rows[:1], lambda m: m[..., 0])))


def test_ends_of_fieller_are_where_the_t_test_just_rejects():
    rng = np.random.default_rng(5)
    a, b = rng.normal(0.2, 0.05, 5), rng.normal(0.9, 0.1, 5)
    found = paired_ratio(dict(enumerate(a)), dict(enumerate(b)))
    assert found.value == pytest.approx(a.mean() / b.mean())
    for end in (found.low, found.high):
        assert stats.ttest_1samp(a - end * b, 0).pvalue == pytest.approx(0.05)
    assert found.low < found.boot_low < found.value < found.boot_high < found.high


def test_recovery_of_the_published_gap():
    # arXiv 2604.01563, abstract: a gap of 0.97 nats; 84 % recovered leaves 0.155.
    gap, left = {0: 0.96, 1: 0.97, 2: 0.98}, {0: 0.150, 1: 0.155, 2: 0.160}
    found = one_minus(paired_ratio(left, gap))
    assert found.value == pytest.approx(0.84, abs=5e-4)
    assert found.low < found.boot_low <= found.value <= found.boot_high < found.high


def test_ratio_is_undefined_where_the_denominator_may_be_zero():
    wide = paired_ratio({0: 1.0, 1: 1.1, 2: 0.9}, {0: 0.5, 1: -0.2, 2: 0.3})
    assert math.isnan(wide.value)
    assert wide.reason == "the interval of the denominator includes 0"
    assert "one seed" in paired_ratio({0: 1.0}, {0: 2.0}).reason
    assert "no seed in common" in paired_ratio({0: 1.0}, {1: 2.0}).reason
    steady = paired_ratio({0: 1.0, 1: 1.0}, {0: 2.0, 1: 2.0})
    assert (steady.low, steady.value, steady.high) == pytest.approx((0.5, 0.5, 0.5))
