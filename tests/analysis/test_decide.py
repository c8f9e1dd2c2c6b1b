import math

import pytest

from analysis.decide import seeds_needed, verdict
from analysis.stats import t_interval


# SD of one-seed slopes and the number of seeds for a half-width of 0.02, published for
# these measurements (from the t interval; their SDs to four digits).
@pytest.mark.parametrize("sd, n", [(0.0183, 6), (0.0438, 21), (0.0950, 90)])
def test_number_of_seeds_is_the_published_one(sd, n):
    assert seeds_needed(sd, 0.02) == n


def test_number_of_seeds_is_the_smallest_that_is_enough():
    # t_{9, 0.975} = 2.262157, t_{8, 0.975} = 2.306004 in any table.
    assert 2.262157 * 0.0266 / math.sqrt(10) <= 0.02 < 2.306004 * 0.0266 / 3
    assert seeds_needed(0.0266, 0.02) == 10
    # t_{1, 0.975} / sqrt(2) = 8.985, t_{2, 0.975} / sqrt(3) = 2.484.
    assert seeds_needed(1.0, 3.1) == 3
    assert seeds_needed(1.0, 8.99) == 2
    assert seeds_needed(0.0, 0.02) == 2
    assert seeds_needed(math.nan, 0.02) is None
    assert seeds_needed(1e6, 1e-6) is None


def test_so_many_seeds_of_the_same_scatter_settle_it():
    values = [-0.40, -0.55]
    few = verdict(t_interval(values), -0.475, 0.05)
    assert few.status == "too few seeds"
    # t interval of n values alternating between the two has nearly the same SD.
    many = (values * few.seeds_needed)[: few.seeds_needed]
    assert verdict(t_interval(many), -0.475, 0.05).status == "confirmed"


def test_one_seed_never_settles_anything():
    found = verdict(t_interval([-0.475]), -0.475, 0.02)
    assert (found.status, found.seeds_needed) == ("too few seeds", None)
