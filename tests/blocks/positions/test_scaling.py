"""Slower rotary frequencies: against transformers, the oracle, and by their promises."""

import functools
import math

import numpy as np
import pytest

from blocks.oracle import positions as oracle
from blocks.positions.rope import Rope
from blocks.positions.scaling import Interpolation, Llama3, Yarn

# inv_freq of small models of transformers 5.24.0 (modeling_rope_utils.py, float32).
TRANSFORMERS = {
    "llama 3.1": (
        Rope(8, base=100.0, scaling=Llama3(factor=8.0, original_len=64)),
        [1.0, 0.24438459, 0.013042256, 0.0039528473],
    ),
    "gpt-oss": (
        Rope(
            12,
            base=1.5e5,
            scaling=Yarn(factor=32.0, original_len=4096, truncate=False),
        ),
        [1.0, 0.13718863, 0.013777479, 0.00045648392, 1.1069358e-05, 1.5185908e-06],
    ),
    "olmo 3": (
        Rope(8, base=100.0, scaling=Yarn(factor=4.0, original_len=16)),
        [1.0, 0.079056941, 0.025, 0.0079056947],
    ),
    "gemma 3": (
        Rope(12, base=1e6, scaling=Interpolation(factor=8.0)),
        [0.125, 0.0125, 0.00125, 0.000125, 1.25e-05, 1.25e-06],
    ),
    "qwen3-next": (Rope(12, base=1e4, fraction=1 / 3), [1.0, 0.01]),
}


@pytest.mark.parametrize("rope, expected", TRANSFORMERS.values(), ids=TRANSFORMERS)
def test_frequencies_equal_transformers(rope, expected):
    np.testing.assert_allclose(rope.frequencies(), expected, rtol=1e-6)


def oracle_frequencies(d_rotary, base, scaling):
    return [
        scaling(base ** (-2 * i / d_rotary), i, d_rotary) for i in range(d_rotary // 2)
    ]


@pytest.mark.parametrize("d_head, base", [(8, 100.0), (64, 5e5), (128, 1.5e5)])
def test_frequencies_equal_the_oracle(d_head, base):
    yarn = dict(factor=32.0, original_len=4096, beta_fast=32.0, beta_slow=1.0)
    cases = [
        (Interpolation(factor=8.0), oracle.linear_scaling, dict(factor=8.0)),
        (
            Llama3(factor=8.0, low=1.0, high=4.0, original_len=64),
            oracle.llama3_scaling,
            dict(factor=8.0, low=1.0, high=4.0, original_len=64),
        ),
        (
            Llama3(),
            oracle.llama3_scaling,
            dict(factor=8.0, low=1.0, high=4.0, original_len=8192),
        ),
        (Yarn(**yarn), oracle.yarn_scaling, dict(**yarn, base=base, truncate=True)),
        (
            Yarn(**yarn, truncate=False),
            oracle.yarn_scaling,
            dict(**yarn, base=base, truncate=False),
        ),
        # Ends beyond the last pair, and before the first.
        (
            Yarn(**{**yarn, "beta_slow": 1e-30}),
            oracle.yarn_scaling,
            dict(**{**yarn, "beta_slow": 1e-30}, base=base, truncate=True),
        ),
        (
            Yarn(**{**yarn, "original_len": 20}),
            oracle.yarn_scaling,
            dict(**{**yarn, "original_len": 20}, base=base, truncate=True),
        ),
        # One pair for both ends: a step.
        (
            Yarn(**{**yarn, "beta_fast": 1.0}, truncate=False),
            oracle.yarn_scaling,
            dict(**{**yarn, "beta_fast": 1.0}, base=base, truncate=False),
        ),
    ]
    for scaling, function, settings in cases:
        found = Rope(d_head, base=base, scaling=scaling).frequencies()
        assert found.dtype == np.float64
        expected = oracle_frequencies(
            d_head, base, functools.partial(function, **settings)
        )
        np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("scaling", [Llama3(original_len=512), Yarn(original_len=512)])
def test_fast_pairs_are_kept_and_slow_ones_divided(scaling):
    plain = Rope(128, base=1e4).frequencies()
    scaled = Rope(128, base=1e4, scaling=scaling).frequencies()
    assert scaled[0] == plain[0]
    np.testing.assert_allclose(scaled[-1], plain[-1] / scaling.factor, rtol=1e-12)
    ratio = plain / scaled
    assert (np.diff(ratio) >= -1e-12).all()


# gpt-oss 1.3466; OLMo 3, factor 8, 1.2079; DeepSeek, factor 40, 1, and scores times the
# square of 1.3689 (V3) or 1.2608 (V2).
def test_magnitude_of_released_models():
    assert math.isclose(Yarn(factor=32.0).magnitude, 1.3466, abs_tol=5e-5)
    assert math.isclose(Yarn(factor=8.0).magnitude, 1.2079, abs_tol=5e-5)
    v3 = Yarn(factor=40.0, mscale=1.0, mscale_all_dim=1.0)
    assert v3.magnitude == 1.0
    assert math.isclose(v3.m(1.0), 1.3689, abs_tol=5e-5)
    v2 = Yarn(factor=40.0, mscale=0.707, mscale_all_dim=0.707)
    assert v2.magnitude == 1.0
    assert math.isclose(v2.m(0.707), 1.2608, abs_tol=5e-5)
    assert Yarn(factor=40.0, attention_factor=1.5).magnitude == 1.5
    mixed = Yarn(factor=40.0, mscale=2.0, mscale_all_dim=1.0)
    assert math.isclose(mixed.magnitude, mixed.m(2.0) / mixed.m(1.0))


def test_scalings_are_values():
    assert Yarn(factor=4.0) == Yarn(factor=4.0)
    assert hash(Yarn(factor=4.0)) != hash(Yarn(factor=5.0))
    assert Llama3() != Llama3(factor=32.0)


@pytest.mark.parametrize(
    "make, message",
    [
        (
            lambda: Interpolation(factor=0.0),
            "factor must be positive and finite, got 0",
        ),
        (lambda: Llama3(low=4.0, high=4.0), "low=4.0 and high=4.0"),
        (lambda: Llama3(original_len=0), "original_len must be positive"),
        (lambda: Yarn(factor=0.5), "factor must be finite and at least 1, got 0.5"),
        (lambda: Yarn(beta_fast=1.0, beta_slow=2.0), "beta_fast=1.0 and beta_slow=2.0"),
        (lambda: Yarn(mscale=-1.0), "mscale must be positive and finite, got -1.0"),
    ],
)
def test_senseless_values_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
