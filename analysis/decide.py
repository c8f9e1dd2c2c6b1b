"""When a measured interval confirms a published number, and how many seeds it takes."""

import math
from dataclasses import dataclass

from scipy import stats

from analysis.stats import Interval

CONFIRMED = "confirmed"
NOT_CONFIRMED = "not confirmed"
TOO_FEW = "too few seeds"
NOT_EVALUATED = "not evaluated"
# Beyond this a protocol is at fault, not the number of its seeds.
MAX_SEEDS = 100_000


@dataclass(frozen=True)
class Verdict:
    """What the seeds say about an expectation.

    Attributes:
        status: "confirmed", "not confirmed" or "too few seeds".
        seeds_needed: the number of seeds whose 95 % interval would be as narrow as
            the tolerance, at the scatter seen so far; None for a single seed, which
            has no scatter, and where more than 100,000 would be needed.
    """

    status: str
    seeds_needed: int | None


def verdict(measured: Interval, expected: float, tolerance: float) -> Verdict:
    """Confirmed, not confirmed, or too few seeds to say.

    An interval wider than the tolerance on either side of the mean cannot confirm;
    it can still refute, where it does not touch expected +- tolerance at all.
    """
    is_wide = not measured.half_width <= tolerance  # also where there is none (NaN)
    misses = abs(measured.mean - expected) > tolerance + measured.half_width
    is_near = abs(measured.mean - expected) <= tolerance
    if is_wide:
        status = NOT_CONFIRMED if misses else TOO_FEW
    else:
        status = CONFIRMED if is_near else NOT_CONFIRMED
    return Verdict(status, seeds_needed(measured.sd, tolerance))


def seeds_needed(sd: float, tolerance: float, *, level: float = 0.95) -> int | None:
    """The smallest n >= 2 with t_{n-1} * sd / sqrt(n) <= tolerance.

    Args:
        sd: standard deviation over seeds; NaN where it is not known.
        tolerance: half-width to be reached, positive.
    """
    if not math.isfinite(sd):
        return None

    def is_enough(n: int) -> bool:
        return stats.t.ppf((1 + level) / 2, n - 1) * sd / math.sqrt(n) <= tolerance

    high = 2
    while not is_enough(high):
        if high > MAX_SEEDS:
            return None
        high *= 2
    low = high // 2  # not enough, or 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high
