import csv
import math
from pathlib import Path

import numpy as np
import pytest

from analysis.laws.linear import linear_law
from analysis.laws.power import finite_grid_exponent, power_law, slope_interval

GOLDEN = Path(__file__).parents[1] / "golden" / "depth_laws_runs.csv"
DEPTHS = (6, 12, 24, 48, 96, 192, 384)


def measured(variant, column):
    """seed -> values over DEPTHS of networks measured in PyTorch."""
    with GOLDEN.open() as file:
        rows = list(csv.DictReader(line for line in file if line[0] != "#"))
    table = {
        (int(r["seed"]), int(r["L"])): float(r[column])
        for r in rows
        if r["variant"] == variant
    }
    seeds = sorted({seed for seed, _ in table})
    return {seed: [table[seed, depth] for depth in DEPTHS] for seed in seeds}


# Fitted outside the project to the same networks (PyTorch 2.13.0 CPU, float32):
# exponent, half-width, SD of slopes, Theil-Sen, largest residual of the power law,
# rate per block, largest residual of the exponential.
@pytest.mark.parametrize(
    "variant, column, expected, kind",
    [
        (
            "pre",
            "gW1_last",
            (-0.4762, 0.0077, 0.0183, -0.4764, 0.024, -0.00457, 0.495),
            "power",
        ),
        (
            "pre",
            "gW2_last",
            (-0.4730, 0.0080, 0.0190, -0.4717, 0.029, -0.00452, 0.509),
            "power",
        ),
        (
            "post",
            "gW1_last",
            (0.0033, 0.0112, 0.0266, 0.0017, 0.040, 0.00002, 0.041),
            "flat",
        ),
        (
            "post",
            "gW2_last",
            (0.0070, 0.0096, 0.0227, 0.0060, 0.031, 0.00006, 0.035),
            "flat",
        ),
    ],
)
def test_reproduces_published_fits_of_measured_networks(
    variant, column, expected, kind
):
    law = power_law(DEPTHS, measured(variant, column))
    got = (
        law.exponent.mean,
        law.exponent.half_width,
        law.exponent.sd,
        law.theil_sen,
        law.max_residual_power,
        law.rate.mean,
        law.max_residual_exponential,
    )
    # Half a unit of the last digit that was written down.
    for value, number, digit in zip(
        got, expected, (5e-5, 5e-5, 5e-5, 5e-5, 5e-4, 5e-6, 5e-4), strict=True
    ):
        assert abs(value - number) <= 1.01 * digit
    assert (law.n, law.kind) == (24, kind)


# Closed-form values: least squares of -1/2 ln(1 + v L) on ln L (S_xy / S_xx by hand).
@pytest.mark.parametrize(
    "depths, values",
    [
        (DEPTHS, (-0.044, -0.334, -0.424, -0.469, -0.484, -0.489, -0.492, -0.495)),
        (DEPTHS[:5], (-0.019, -0.270, -0.388, -0.453, -0.475, -0.483, -0.487, -0.492)),
        ((6, 24, 96), (-0.020, -0.270, -0.386, -0.452, -0.474, -0.482, -0.487, -0.492)),
        (
            (6, 8, 10, 12, 14),
            (-0.006, -0.158, -0.301, -0.409, -0.450, -0.465, -0.473, -0.484),
        ),
        (DEPTHS[1:5], (-0.024, -0.310, -0.418, -0.468, -0.483, -0.489, -0.492, -0.495)),
        (DEPTHS[2:], (-0.066, -0.402, -0.464, -0.487, -0.493, -0.496, -0.497, -0.498)),
    ],
)
def test_finite_grid_exponent_is_above_minus_one_half(depths, values):
    ratios = (0.0013, 0.05, 1 / 6, 0.5, 1, 1.5, 2, 3.3)
    got = [finite_grid_exponent(depths, ratio) for ratio in ratios]
    np.testing.assert_allclose(got, values, atol=5.1e-4)
    assert finite_grid_exponent(depths, 0) == 0


def test_exact_power_law_is_recovered_whatever_the_order_of_depths():
    depths = (96, 6, 384, 24)
    values = {
        0: [0.7 * d**-0.25 for d in depths],
        5: [0.9 * d**-0.35 for d in depths],
    }
    law = power_law(depths, values)
    np.testing.assert_allclose(law.exponent.mean, -0.30, rtol=1e-12)
    np.testing.assert_allclose(law.slopes[5], -0.35, rtol=1e-12)
    np.testing.assert_allclose(law.theil_sen, -0.30, rtol=1e-12)
    np.testing.assert_allclose(
        law([6, 384]), math.sqrt(0.63) * np.array([6, 384]) ** -0.30, rtol=1e-12
    )
    assert law.depths == (6, 24, 96, 384)
    assert law.max_residual_power < 1e-12
    # t_{1, 0.975} = 12.7062; slopes differ by 0.1, so SD / sqrt(2) = 0.05.
    np.testing.assert_allclose(law.exponent.half_width, 0.05 * 12.7062, rtol=1e-5)


def test_growth_per_block_is_called_exponential():
    values = {s: [math.exp(0.3466 * d) for d in DEPTHS[:5]] for s in range(3)}
    law = power_law(DEPTHS[:5], values)
    assert law.kind == "exponential"
    np.testing.assert_allclose(
        law.exponential([10, 50]), np.exp([3.466, 17.33]), rtol=1e-9
    )
    np.testing.assert_allclose(law.rate.mean, 0.3466, rtol=1e-12)
    np.testing.assert_allclose(
        slope_interval(DEPTHS[:5], values).mean, 0.3466, rtol=1e-12
    )


def test_two_depths_cannot_tell_a_power_from_an_exponential():
    assert power_law((6, 96), {0: [1.0, 0.25]}).kind == "undetermined"


def test_one_seed_gives_a_slope_without_an_interval():
    law = power_law(DEPTHS, {3: [d**-0.5 for d in DEPTHS]})
    np.testing.assert_allclose(law.exponent.mean, -0.5, rtol=1e-12)
    assert not law.exponent.has_interval
    assert math.isnan(law.exponent.half_width)


# Published for 400 synthetic experiments on these depths, scatter 0.09 and p = -0.5:
# coverage, half-width and SD of the estimate.
@pytest.mark.parametrize(
    "seeds, coverage, half_width, sd",
    [
        (3, 0.932, 0.0506, 0.0137),
        (5, 0.965, 0.0290, 0.0109),
        (8, 0.960, 0.0196, 0.0087),
        (16, 0.932, 0.0128, 0.0065),
        (32, 0.963, 0.0087, 0.0042),
    ],
)
def test_interval_has_the_published_coverage_and_width(seeds, coverage, half_width, sd):
    rng = np.random.default_rng(seeds)
    found = []
    for noise in np.exp(0.09 * rng.standard_normal((400, seeds, 7))):
        values = dict(enumerate(np.array(DEPTHS) ** -0.5 * noise))
        found.append(slope_interval(np.log(DEPTHS), values))
    hits = np.mean([i.low <= -0.5 <= i.high for i in found])
    # Binomial SD over 400 draws is 0.011, in theirs and in ours.
    assert abs(hits - 0.95) < 0.033
    assert abs(hits - coverage) < 0.047
    # An SD from n seeds scatters by 1 / sqrt(2 (n - 1)) of itself; means of 400, theirs
    # and ours, differ by sqrt(2 / 400) of that: three of those.
    spread = 3 * math.sqrt(2 / 400 / (2 * (seeds - 1)))
    widths = [interval.half_width for interval in found]
    np.testing.assert_allclose(np.mean(widths), half_width, rtol=spread)
    # SD of an SD over 400 draws: 3.5 %, in theirs and in ours.
    np.testing.assert_allclose(np.std([i.mean for i in found]), sd, rtol=0.15)


def test_interval_of_s0_over_v_covers_it():
    rng, hits = np.random.default_rng(0), 0
    for noise in np.exp(0.08 * rng.standard_normal((200, 8, 7))):
        values = dict(enumerate(noise / np.sqrt(1 + np.array(DEPTHS))))
        ratio = linear_law(DEPTHS, values).ratio
        hits += ratio.low <= 1 <= ratio.high
    # Binomial SD over 200 draws is 0.015.
    assert abs(hits / 200 - 0.95) < 0.046


def test_linear_law_recovers_its_constants_exactly():
    s0_square, v, constant = 0.25, 0.4, 0.03
    g = [constant / math.sqrt(s0_square + v * d) for d in DEPTHS]
    law = linear_law(DEPTHS, {0: g, 1: g}, s0_square=s0_square)
    np.testing.assert_allclose(law.constant, constant, rtol=1e-9)
    np.testing.assert_allclose(law.s0_square_over_v, s0_square / v, rtol=1e-9)
    np.testing.assert_allclose(law.r_squared, 1, rtol=1e-12)
    assert law.max_residual < 1e-9


def test_linear_law_of_measured_networks_finds_their_known_s0_and_v():
    # Kaiming init of a ReLU MLP: a block adds as much as enters the network, v = s0^2
    # = 1. C is sqrt(2) times the constant 0.0310 of Post-LN, whose last normalizer sees
    # mean square 2; these networks were published to follow that within 5 %.
    law = linear_law(DEPTHS, measured("pre", "gW1_last"))
    np.testing.assert_allclose(law.slope**-0.5, math.sqrt(2) * 0.0310, rtol=0.05)
    assert law.r_squared > 0.98
    # The intercept is read at L = 0 from depths 6 and up: 3 % noise of g^-2 at L = 6
    # is a quarter of it, so the ratio is certain to a factor of two and no better.
    assert 0.5 < law.s0_square_over_v < 2


def test_linear_law_of_a_constant_says_that_nothing_grows():
    law = linear_law(DEPTHS, {0: [2.0] * 7})
    np.testing.assert_allclose(law.intercept, 0.25, rtol=1e-9)
    np.testing.assert_allclose(law.slope, 0, atol=1e-12)


@pytest.mark.parametrize(
    "depths, values, message",
    [
        ((6,), {0: [1.0]}, "at least two depths"),
        ((), {}, "at least two depths"),
        ((6, 6), {0: [1.0, 2.0]}, "twice"),
        ((0, 6), {0: [1.0, 2.0]}, "at least 1"),
        ((6, 12), {}, "at least one seed"),
        ((6, 12), {0: [1.0, 2.0], 4: [1.0]}, "seed 4 has 1 values for 2 depths"),
        ((6, 12), {0: [1.0, 0.0]}, "positive and finite, got 0.0 for seed 0"),
        ((6, 12), {2: [1.0, math.nan]}, "got nan for seed 2"),
        ((6, 12), {2: [1.0, math.inf]}, "got inf for seed 2"),
    ],
)
def test_refuses_data_that_have_no_law(depths, values, message):
    for fit in (power_law, linear_law):
        with pytest.raises(ValueError, match=message):
            fit(depths, values)


def test_refuses_a_meaningless_ratio():
    with pytest.raises(ValueError, match="not negative, got -1"):
        finite_grid_exponent(DEPTHS, -1)
    with pytest.raises(ValueError, match="positive and finite, got 0"):
        linear_law((6, 12), {0: [1.0, 1.0]}, s0_square=0)
