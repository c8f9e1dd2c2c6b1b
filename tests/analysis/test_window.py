"""Where an axis ends when one variant explodes."""

import math

import numpy as np
import polars as pl
import pytest
from matplotlib.figure import Figure

from analysis.plots import style
from analysis.plots.window import cut_axis, window_of

USUAL = {"pre": [1.0, 0.5, 0.1], "post": [1.0, 2.0, 3.0], "peri": [1.0, 1.1, 1.2]}


def test_variants_of_one_size_are_all_shown():
    window = window_of(USUAL)
    assert not window.is_cut
    assert (window.low, window.high) == pytest.approx((0.1, 3.0))
    assert window.note("axis") == ""
    assert window.extend == "neither"


def test_an_exploding_variant_is_left_out_and_named():
    window = window_of({**USUAL, "none": [1.0, 1e12, 1e50]})
    assert window.beyond == pytest.approx({"none": 1e50})
    assert (window.low, window.high) == pytest.approx((0.1, 3.0))
    assert "none (1e+50)" in window.note("axis")
    assert window.extend == "max"


def test_so_is_a_vanishing_one():
    window = window_of({**USUAL, "small": [1e-3, 1e-40], "none": [1e60]})
    assert set(window.beyond) == {"small", "none"}
    assert window.extend == "both"


def test_those_that_explode_at_different_rates_do_not_keep_each_other_in():
    """Ten networks within two decades, and three whose gradients reach 1e3, 1e5, 1e6."""
    usual = {str(k): [10 ** (-k / 5), 1.0] for k in range(10)}
    window = window_of({**usual, "none": [1.0, 1e3], "out": [1, 1e5], "sub": [1, 1e6]})
    assert set(window.beyond) == {"out", "sub"}
    assert window.high == pytest.approx(1e3)


def test_far_apart_but_evenly_is_no_explosion():
    """Every variant three decades from the next: all of them are the picture."""
    assert not window_of({str(k): [10.0 ** (3 * k)] for k in range(6)}).is_cut


def test_within_a_factor_that_can_be_read_nothing_is_left_out():
    assert not window_of({**USUAL, "large": [900.0]}).is_cut


def test_half_of_the_variants_always_stay():
    window = window_of({"a": [1.0], "b": [1e20], "c": [1e40], "d": [1e60]})
    assert len(window.beyond) <= 2


def test_two_variants_are_both_shown():
    """Nobody can say which of two is the usual one."""
    assert not window_of({"a": [1.0], "b": [1e30]}).is_cut


def test_values_without_a_place_on_the_axis_are_passed_over():
    window = window_of({"a": [1.0, math.inf, math.nan, 0.0, -1.0], "b": [math.nan]})
    assert (window.low, window.high) == (1.0, 1.0)
    with pytest.raises(ValueError, match="no positive value"):
        window_of({"b": [math.nan]})


def test_arrows_stand_where_the_variant_leaves_the_axis():
    values = {**USUAL, "none": [1.0, 1e12, 1e50]}
    frame = pl.DataFrame(
        [
            {"variant": v, "n_layers": 6 * 2**i, "value": x}
            for v, of in values.items()
            for i, x in enumerate(of)
        ]
    )
    window = window_of(values)
    axes = Figure().subplots()
    axes.set_yscale("log")
    cut_axis(axes, frame, window, style.looks(list(values)))
    assert axes.get_ylim() == pytest.approx(window.limits)
    drawn = sorted(float(line.get_xdata()[0]) for line in axes.lines)
    assert drawn == [12.0, 24.0]
    assert all(line.get_marker() == "^" for line in axes.lines)
    assert np.allclose([line.get_ydata()[0] for line in axes.lines], window.limits[1])
