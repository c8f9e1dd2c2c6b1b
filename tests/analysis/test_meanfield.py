import math

import numpy as np
import pytest

from analysis import meanfield
from analysis.meanfield import MeanField, over_depths, pointwise, pre

DEPTHS = (6, 12, 24, 48, 96, 192, 384)


def test_pre_ln_is_the_closed_form_in_every_block_whatever_the_depth():
    for n_layers in (6, 96):
        theory = pre(n_layers, s0_square=0.25, v=3.0)
        blocks = np.arange(1, n_layers + 1)
        np.testing.assert_allclose(
            theory.gradient, 1 / np.sqrt(0.25 + 3 * blocks), rtol=1e-14
        )
        np.testing.assert_allclose(theory.stream[0], 0.25)


def test_telescoping_is_what_the_backward_recursion_gives():
    # Block by block: delta_{l-1}^2 = delta_l^2 (1 + c_l^2 v / s_{l-1}^2).
    factors, v, s0 = np.array([1.0, 0.3, 2.0, 0.7]), 0.8, 1.7
    square = [s0]
    for c in factors:
        square.append(square[-1] + c**2 * v)
    delta_square = 1 / square[-1]
    expected = []
    for block in range(4, 0, -1):
        expected.append(factors[block - 1] * math.sqrt(delta_square))
        delta_square *= 1 + factors[block - 1] ** 2 * v / square[block - 1]
    theory = pre(4, s0_square=s0, v=v, factors=factors)
    np.testing.assert_allclose(theory.gradient, expected[::-1], rtol=1e-13)
    np.testing.assert_allclose(theory.stream, square, rtol=1e-14)


# Published beside the law of the pointwise norms, alpha 0.5 and v = s0^2 = 1: ratios to
# the value at 6 blocks.
@pytest.mark.parametrize(
    "function, layer, ratios",
    [
        ("Derf", "last", (1, 1.03, 0.97, 0.86, 0.73, 0.62, 0.52)),
        ("DyT", "last", (1, 1.06, 1.05, 0.95, 0.83, 0.70, 0.59)),
        ("Derf", "first", (1, 1.31, 1.98, 3.6, 8.7, 30, 182)),
        ("DyT", "first", (1, 1.28, 1.83, 3.1, 6.5, 19, 85)),
    ],
)
def test_pointwise_recursion_has_the_published_ratios(function, layer, ratios):
    got = over_depths(pointwise, DEPTHS, layer, function=function)
    np.testing.assert_allclose(got / got[0], ratios, rtol=0.016)


@pytest.mark.parametrize("a", [0.1, 1.0, 20.0])
def test_gaussian_means_of_erf_are_the_closed_forms(a):
    # E erf(a z)^2 = 2/pi asin(2 a^2 / (1 + 2 a^2)); E erf'(a z)^2 = 4/pi / sqrt(1 + 4 a^2).
    f, derivative = meanfield.POINTWISE["Derf"]
    square = meanfield.gaussian_mean(lambda z: f(a * z) ** 2)
    slope = meanfield.gaussian_mean(lambda z: derivative(a * z) ** 2)
    np.testing.assert_allclose(
        square, 2 / math.pi * math.asin(2 * a**2 / (1 + 2 * a**2)), rtol=1e-9
    )
    np.testing.assert_allclose(slope, 4 / math.pi / math.sqrt(1 + 4 * a**2), rtol=1e-9)


@pytest.mark.parametrize("function", ["Derf", "DyT"])
def test_the_last_block_behind_a_pointwise_norm_tends_to_a_quarter_power(function):
    deep = over_depths(pointwise, (4000, 8000), function=function)
    assert abs(math.log2(deep[1] / deep[0]) + 0.25) < 0.02


def test_small_alpha_makes_a_pointwise_norm_linear():
    # tanh(a x) = a x: the stream grows by 1 + v a^2 per block, as without a norm.
    theory = pointwise(8, function="DyT", alpha=1e-3, v=2.0)
    np.testing.assert_allclose(theory.stream, (1 + 2e-6) ** np.arange(9.0), rtol=1e-10)


def test_deepnorm_is_the_same_in_every_block_and_falls_as_the_root():
    theory = meanfield.deepnorm(96)
    assert np.ptp(theory.gradient) == 0
    ratio = meanfield.deepnorm(24).gradient[-1] / theory.gradient[-1]
    np.testing.assert_allclose(ratio, 2, rtol=5e-3)


def test_layernorm_scaling_grows_by_the_harmonic_numbers():
    # Published: RMS 2.43 / 3.36 after 12 / 192 sub-layers of 6 / 96 blocks, where both
    # sub-layers of a block divide by the same root.
    for n_layers, rms in ((6, 2.43), (96, 3.36)):
        square = meanfield.layernorm_scaling(n_layers, v=2.0).stream[-1]
        np.testing.assert_allclose(math.sqrt(square), rms, rtol=3e-3)


def test_mix_starts_its_pre_part_at_one():
    theory = meanfield.mix(24)
    np.testing.assert_allclose(theory.stream[:7], 1)
    np.testing.assert_allclose(theory.stream[-1], 1 + 18)
    np.testing.assert_allclose(theory.gradient[:6], 0.5**0.5)


def test_total_norm_of_pre_ln_grows_slowly():
    # Published grid slope of sqrt(sum_l g(l)^2): 0.147.
    totals = [np.linalg.norm(pre(depth).gradient) for depth in DEPTHS]
    x = np.log(DEPTHS) - np.log(DEPTHS).mean()
    assert abs(x @ np.log(totals) / (x @ x) - 0.147) < 6e-4


def test_every_scheme_gives_one_number_per_block():
    schemes = [
        pre,
        meanfield.post,
        meanfield.deepnorm,
        meanfield.mix,
        meanfield.layernorm_scaling,
        meanfield.depth_scaled,
        meanfield.residual_two_streams,
        meanfield.no_norm,
        pointwise,
    ]
    for scheme in schemes:
        theory = scheme(7, s0_square=0.5, v=0.3)
        assert isinstance(theory, MeanField)
        assert theory.gradient.shape == (7,)
        assert theory.stream.shape == (8,)
        assert theory.stream[0] == 0.5
    with pytest.raises(ValueError, match="one of Derf, DyT, got 'ReLU'"):
        pointwise(4, function="ReLU")
