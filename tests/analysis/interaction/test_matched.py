import math

import numpy as np
import pytest

from analysis.interaction.matched import Curve, log_step_ratio, match_losses


def straight(start, slope, gap=0.0, last=100):
    """start - slope * t + gap * t / last, at every tenth step."""
    steps = np.arange(0, last + 1, 10.0)
    return Curve(steps, start - slope * steps + gap * steps / last)


def test_a_curve_is_read_between_evaluations():
    curve = Curve(np.array([0.0, 10, 20]), np.array([5.0, 3, 2]))
    assert curve.at(15) == 2.5
    assert curve.reaches(4.0) == 5
    assert curve.reaches(3.0) == 10
    assert curve.reaches(9.0) == 0
    assert math.isnan(curve.reaches(1.9))


def test_the_first_crossing_counts_where_a_loss_rises_again():
    curve = Curve(np.array([0.0, 10, 20, 30]), np.array([5.0, 2, 4, 1]))
    assert curve.reaches(3.0) == pytest.approx(20 / 3)


def test_the_column_that_is_ahead_is_rewound_to_the_loss_of_the_other():
    # Baselines: 5 - t/50 ends at 3; 5 - t/40 is there at t = 80.
    curves = {
        (0, 0): straight(5, 0.02),
        (1, 0): straight(5, 0.02, gap=0.3),
        (0, 1): straight(5, 0.025),
        (1, 1): straight(5, 0.025, gap=1.0),
    }
    found = match_losses(curves, ("adamw", "muon"))
    assert (found.rewound, found.target) == ("muon", pytest.approx(3))
    assert found.step == pytest.approx(80)
    # There the gap of muon is 0.8 of its last one.
    assert found.gaps == pytest.approx((0.3, 0.8))
    assert found.interaction == pytest.approx(0.5)


def test_a_gap_that_follows_the_loss_is_no_interaction_when_matched():
    # The gap is a function of the baseline's loss alone; muon is twice as fast.
    steps = np.arange(0, 101, 5.0)

    def pair(speed):
        base = 5 - 3 * (1 - np.exp(-speed * steps / 50))
        return Curve(steps, base), Curve(steps, base + (5 - base) ** 2 / 10)

    curves = {}
    for column, speed in enumerate((1.0, 2.0)):
        curves[0, column], curves[1, column] = pair(speed)
    finals = {cell: curve.final for cell, curve in curves.items()}
    raw = (finals[1, 1] - finals[0, 1]) - (finals[1, 0] - finals[0, 0])
    assert raw > 0.1
    assert abs(match_losses(curves, ("a", "b")).interaction) < 1e-3


def test_equal_baselines_are_read_at_the_end():
    curves = {
        (i, j): straight(5, 0.02, gap=0.1 * i * j) for i in (0, 1) for j in (0, 1)
    }
    found = match_losses(curves, ("adamw", "muon"))
    assert found.rewound == ""
    assert found.interaction == pytest.approx(0.1)


def test_steps_to_the_loss_that_all_reach():
    # t = 2 / slope to come from 5 to 3, the highest final loss.
    slopes = {(0, 0): 0.04, (1, 0): 0.03, (0, 1): 0.05, (1, 1): 0.02}
    curves = {cell: straight(5, slope) for cell, slope in slopes.items()}
    found, reason = log_step_ratio(curves)
    assert found == pytest.approx(math.log((5 / 2) / (4 / 3)))
    assert reason == ""


def test_a_run_that_never_learned_has_no_step_ratio():
    curves = {(i, j): straight(5, 0.02) for i in (0, 1) for j in (0, 1)}
    curves[1, 0] = straight(5, -0.01)
    found, reason = log_step_ratio(curves)
    assert math.isnan(found)
    assert "never left its first loss" in reason
