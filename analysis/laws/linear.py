"""The law g = C / sqrt(s0^2 + v L) as a straight line: g^-2 against L."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from analysis.laws.data import checked
from analysis.stats import Interval, jackknife_interval

# The theory is of wide networks. At width 64 the geometric mean of the stream itself has
# a / b = 1.3 where s0^2 / v = 1, and the gradient follows that stream.
WIDTH_FACTOR = 1.5


@dataclass(frozen=True)
class LinearLaw:
    """A fit of g^-2 = a + b L, which is g = C / sqrt(s0^2 + v L).

    Attributes:
        intercept, slope: a = s0^2 / C^2 and b = v / C^2.
        constant: C = s0 / sqrt(a), for the given s0^2; NaN if a <= 0.
        s0_square_over_v: a / b; infinite if b <= 0 (no growth with depth).
        ratio: a / b with its interval over seeds (jackknife); it is compared with the
            measured s0^2 / v, which the gradient knows nothing about.
        r_squared: of g^-2, unweighted.
        max_residual: largest |fit / g^-2 - 1|.
    """

    intercept: float
    slope: float
    constant: float
    s0_square_over_v: float
    ratio: Interval
    r_squared: float
    max_residual: float

    def agrees_with(self, s0_square: float, v: float) -> bool:
        """Whether a / b is the measured s0^2 / v, up to `WIDTH_FACTOR` and its interval.

        False too where there is no interval: one seed cannot say.
        """
        if v <= 0:
            return False
        low, high = self.ratio.low / WIDTH_FACTOR, self.ratio.high * WIDTH_FACTOR
        return low <= s0_square / v <= high


def linear_law(
    depths: Sequence[int],
    values_by_seed: Mapping[int, Sequence[float]],
    *,
    s0_square: float = 1.0,
    level: float = 0.95,
) -> LinearLaw:
    """Fits g^-2 = a + b L to the geometric means over seeds.

    The scatter of g is a factor, so errors of g^-2 grow with g^-2 itself: the fit
    minimises relative errors. (Plain least squares would let the deepest networks
    alone decide and leave the intercept, s0^2 / C^2, undetermined.)

    Args:
        s0_square: mean square of the stream entering the first block, for C only.

    Raises:
        ValueError: as `power_law`; `s0_square` not positive.
    """
    if not (math.isfinite(s0_square) and s0_square > 0):
        raise ValueError(f"s0_square must be positive and finite, got {s0_square}")
    x, logs = checked(depths, values_by_seed)
    y = np.exp(-2 * logs.mean(axis=0))
    a, b = _fit(x, logs)
    fit = a + b * x
    spread = ((y - y.mean()) ** 2).sum()
    return LinearLaw(
        intercept=a,
        slope=b,
        constant=math.sqrt(s0_square / a) if a > 0 else math.nan,
        s0_square_over_v=_ratio(a, b),
        ratio=jackknife_interval(logs, lambda rows: _ratio(*_fit(x, rows)), level),
        r_squared=float(1 - ((y - fit) ** 2).sum() / spread) if spread else math.nan,
        max_residual=float(np.abs(fit / y - 1).max()),
    )


def _fit(x: np.ndarray, logs: np.ndarray) -> tuple[float, float]:
    y = np.exp(-2 * logs.mean(axis=0))
    design = np.stack([np.ones_like(x), x], axis=1) / y[:, None]
    (a, b), *_ = np.linalg.lstsq(design, np.ones_like(y), rcond=None)
    return float(a), float(b)


def _ratio(a: float, b: float) -> float:
    return a / b if b > 0 else math.inf
