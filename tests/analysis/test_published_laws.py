"""The whole way from gradients to verdicts, on networks measured outside the project."""

import numpy as np
import pytest

from analysis import meanfield
from analysis.decide import CONFIRMED, NOT_CONFIRMED
from analysis.laws.linear import linear_law
from analysis.laws.power import power_law
from analysis.laws.profile import profile_law
from analysis.verdicts import evaluate
from tests.analysis.published import (
    DEPTHS,
    published_checks,
    published_profiles,
    published_seeds,
    published_table,
)

CHECKS = {check["id"]: check for check in published_checks()}


def entry(check, **change):
    optional = {"against": check["against"]} if check["against"] else {}
    return {
        "id": check["id"],
        "variant": {"case": check["case"], "model.kind": check["model"]},
        "quantity": check["quantity"],
        "fit": check["fit"],
        "expected": float(check["expected"]),
        "tolerance": float(check["tolerance"]),
        **optional,
        **change,
    }


@pytest.fixture(scope="module")
def outcomes():
    found = evaluate(published_table([entry(check) for check in CHECKS.values()]))
    return {outcome.id: outcome for outcome in found}


@pytest.mark.parametrize("name", CHECKS)
def test_published_check_gives_the_published_fit_and_verdict(outcomes, name):
    check, outcome = CHECKS[name], outcomes[name]
    assert outcome.reason == ""
    if check["measured"]:
        # Half a unit of the last digit written down, plus that of the data (5 digits).
        digit = 5e-6 if check["fit"] == "exponential" else 5e-5
        assert abs(outcome.measured - float(check["measured"])) < 1.2 * digit
    if check["half_width"]:
        assert abs(outcome.half_width - float(check["half_width"])) < 1.2 * 5e-5
    if name == "A19":  # 0.328 over all networks; our mean of one slope per seed
        assert abs(outcome.measured - 0.328) < 1e-3
    if name == "A22":  # -0.998 +- 0.011 on the RMS
        assert abs(2 * outcome.measured + 0.998) < 0.003
        assert abs(2 * outcome.half_width - 0.011) < 0.003
    # Every published number met its tolerance with the seeds it was measured with.
    assert outcome.verdict == CONFIRMED


def test_a_wrong_law_is_not_confirmed():
    # The asymptote -1/2 is wrong on this grid; Post-LN is not Pre-LN.
    entries = [
        entry(CHECKS["A1"], id="X1", expected=-0.50, tolerance=0.015),
        entry(CHECKS["A1"], id="X2", variant={"case": "post:ln:kaiming"}),
    ]
    outcomes = evaluate(published_table(entries))
    assert [o.verdict for o in outcomes] == [NOT_CONFIRMED, NOT_CONFIRMED]


def slope(values):
    return power_law(DEPTHS, {0: values}).exponent.mean


# (case, scheme, keywords, exponent of W1 in the last block that theory gives on 6..384,
# how far the measured one may lie: 3 half-widths of the published interval)
THEORY = [
    ("pre:ln:kaiming", meanfield.pre, {}, -0.484, 0.024),
    ("pre:ln:gpt2", meanfield.pre, {"v": 0.0013}, -0.044, 0.013),
    ("deepnorm:ln:kaiming", meanfield.deepnorm, {}, -0.500, 0.007),
    ("lns:ln:kaiming", meanfield.layernorm_scaling, {}, -0.593, 0.019),
    ("prelinv:ln:kaiming", meanfield.depth_scaled, {"power": 1.0}, -0.984, 0.007),
    ("prescaled:ln:kaiming", meanfield.depth_scaled, {"power": 0.5}, -0.500, 0.011),
    ("residual:ln:kaiming", meanfield.residual_two_streams, {}, -0.085, 0.051),
    ("post:ln:kaiming", meanfield.post, {}, 0.0, 0.034),
    ("nonefinal:id:kaiming", meanfield.no_norm, {"is_final_norm": True}, 0.0, 0.066),
    ("pre:derf:kaiming", meanfield.pointwise, {}, -0.168, 0.019),
    ("pre:dyt:kaiming", meanfield.pointwise, {"function": "DyT"}, -0.137, 0.017),
]


@pytest.mark.parametrize("case, scheme, keywords, expected, tolerance", THEORY)
def test_theory_has_the_published_exponent_and_the_networks_follow_it(
    case, scheme, keywords, expected, tolerance
):
    exponent = slope(meanfield.over_depths(scheme, DEPTHS, **keywords))
    assert abs(exponent - expected) < 6e-4
    measured = power_law(DEPTHS, published_seeds(case, "w1")).exponent.mean
    assert abs(measured - exponent) < tolerance


# RMS of log distance between theory and the geometric mean of 12 to 24 networks, after
# one constant: their scatter is 0.1 to 0.2 per network.
@pytest.mark.parametrize(
    "case, scheme, keywords",
    [
        ("pre:ln:kaiming", meanfield.pre, {}),
        ("peri:ln:kaiming", meanfield.pre, {}),
        ("lns:ln:kaiming", meanfield.layernorm_scaling, {}),
        ("prelinv:ln:kaiming", meanfield.depth_scaled, {"power": 1.0}),
        ("prelsqrt:ln:kaiming", meanfield.depth_scaled, {}),
        ("mix:ln:kaiming", meanfield.mix, {}),
        ("deepnorm:ln:kaiming", meanfield.deepnorm, {}),
        ("post:ln:kaiming", meanfield.post, {}),
        ("pre:derf:kaiming", meanfield.pointwise, {}),
        ("pre:dyt:kaiming", meanfield.pointwise, {"function": "DyT"}),
    ],
)
def test_profiles_and_streams_of_measured_networks_follow_theory(
    case, scheme, keywords
):
    gradient, rms = np.array(published_profiles()[case]).T
    theory = scheme(24, **keywords)
    distance = np.log(gradient) - np.log(theory.gradient)
    assert np.std(distance) < 0.05
    np.testing.assert_allclose(rms, np.sqrt(theory.stream[1:]), rtol=0.08)


def test_without_a_norm_the_stream_doubles_its_square_per_block():
    _, rms = np.array(published_profiles()["none:id:kaiming"]).T
    theory = meanfield.no_norm(24)
    np.testing.assert_allclose(np.log(rms), 0.5 * np.log(theory.stream[1:]), atol=0.25)


def test_profile_law_of_measured_networks():
    # Published: slope -0.447 over the blocks from 2 on, first over last 3.66, at 24.
    gradient = [w1 for w1, _ in published_profiles()["pre:ln:kaiming"]]
    law = profile_law({0: gradient}, from_block=2)
    assert abs(law.exponent.mean + 0.447) < 6e-4
    assert abs(law.first_over_last.mean - 3.66) < 6e-3
    assert law.kind == "power"
    flat = [w1 for w1, _ in published_profiles()["deepnorm:ln:kaiming"]]
    assert profile_law({0: flat}).kind == "flat"


def test_gradients_alone_tell_s0_over_v_of_the_stream():
    # Two independent readings of one number: g^-2 = a + b L, and the stream s0^2 + v L.
    law = linear_law(DEPTHS, published_seeds("pre:ln:kaiming", "w1"))
    squares = published_seeds("pre:ln:kaiming", "square")
    stream = linear_law(
        DEPTHS, {seed: np.power(values, -0.5) for seed, values in squares.items()}
    ).ratio
    assert law.ratio.low < stream.mean < law.ratio.high
    assert law.r_squared > 0.98
    # Kaiming: s0^2 = v. PyTorch's default variance 1 / (3 fan_in), no bias: v = 1 / 18.
    other = linear_law(DEPTHS, published_seeds("pre:ln:tdef", "w1"))
    assert law.agrees_with(1, 1)
    assert other.agrees_with(18, 1)
    assert not law.agrees_with(18, 1)
    assert not other.agrees_with(1, 1)
