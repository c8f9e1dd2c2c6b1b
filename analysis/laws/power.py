"""Power laws and exponentials of depth, with intervals over seeds.

L is the number of blocks, g a norm measured in independent networks, one for every
(seed, depth). Scatter between networks is a factor, so everything is fitted to ln g.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from analysis.laws.data import checked, checked_depths, log_values, slopes
from analysis.stats import Interval, t_interval

# Below these a power law and an exponential cannot be told from "no dependence".
FLAT_EXPONENT = 0.15
FLAT_RESIDUAL = 0.15


@dataclass(frozen=True)
class PowerLaw:
    """A fit of g = A * L^p.

    Attributes:
        exponent: p, mean of the seeds' slopes with its Student-t interval.
        amplitude: A, from the mean of the seeds' intercepts.
        slopes: seed -> slope of its own fit.
        depths: L of the fit, ascending.
        geometric_means: over seeds, one per depth.
        theil_sen: median of the pairwise slopes of the geometric means: a cross-check
            that one bad depth cannot move.
        max_residual_power: largest |ln g - fit| of the geometric means.
        max_residual_exponential: the same for ln g linear in L.
        rate: slope of ln g against L, per block, mean over seeds with interval.
        kind: "flat" if |p| < 0.15 and both residuals are < 0.15, else the law with
            the smaller residual, "power" or "exponential"; "undetermined" if two
            depths, where both fit exactly.
    """

    exponent: Interval
    amplitude: float
    slopes: dict[int, float]
    depths: tuple[int, ...]
    geometric_means: tuple[float, ...]
    theil_sen: float
    max_residual_power: float
    max_residual_exponential: float
    rate: Interval
    kind: str

    @property
    def n(self) -> int:
        """Number of seeds."""
        return self.exponent.n

    def __call__(self, depths) -> np.ndarray:
        """A * L^p."""
        return self.amplitude * np.asarray(depths, float) ** self.exponent.mean

    def exponential(self, depths) -> np.ndarray:
        """B * exp(rate * L), the other fit to the same geometric means."""
        offsets = np.asarray(depths, float) - np.mean(self.depths)
        middle = np.log(self.geometric_means).mean()
        return np.exp(middle + self.rate.mean * offsets)


def power_law(
    depths: Sequence[int],
    values_by_seed: Mapping[int, Sequence[float]],
    *,
    level: float = 0.95,
) -> PowerLaw:
    """Fits ln g = ln A + p ln L by least squares, one slope per seed.

    The interval comes from the scatter of slopes between seeds (Student t, n - 1
    degrees of freedom), so it assumes nothing about the residuals of a fit. One seed
    gives a slope and no interval (NaN).

    Args:
        depths: L, in blocks; at least two different ones.
        values_by_seed: seed -> g at each of `depths`, in that order.

    Raises:
        ValueError: fewer than two depths, a depth twice or below 1, no seeds, a seed
            with another number of values, a value that is not positive and finite.
    """
    x, logs = checked(depths, values_by_seed)
    log_x, means = np.log(x), logs.mean(axis=0)
    own = slopes(log_x, logs)
    exponent = t_interval(own, level=level)
    power = max_residual(log_x, means)
    exponential = max_residual(x, means)
    return PowerLaw(
        exponent=exponent,
        amplitude=math.exp(means.mean() - exponent.mean * log_x.mean()),
        slopes=dict(zip(values_by_seed, own.tolist(), strict=True)),
        depths=tuple(int(d) for d in x),
        geometric_means=tuple(np.exp(means).tolist()),
        theil_sen=_theil_sen(log_x, means),
        max_residual_power=power,
        max_residual_exponential=exponential,
        rate=t_interval(slopes(x, logs), level=level),
        kind=kind_of(exponent.mean, power, exponential, len(x)),
    )


def slope_interval(
    x: Sequence[float],
    values_by_seed: Mapping[int, Sequence[float]],
    *,
    level: float = 0.95,
) -> Interval:
    """Slope of ln g on any x (ln L, L, sqrt(L)), per seed, with a t interval.

    Raises:
        ValueError: as `power_law`, for x instead of the depths.
    """
    x = np.asarray(x, dtype=np.float64)
    if x.ndim != 1 or len(np.unique(x)) < 2:
        raise ValueError(f"a slope needs at least two different x, got {x.tolist()}")
    return t_interval(slopes(x, log_values(len(x), values_by_seed)), level=level)


def finite_grid_exponent(depths: Sequence[int], v_over_s0: float) -> float:
    """Exponent that a power-law fit finds in 1 / sqrt(s0^2 + v L) on these depths.

        p = least-squares slope of -1/2 ln(1 + (v / s0^2) L) on ln L

    It tends to -1/2 only where v L >> s0^2 on the whole grid: -0.475 for v = s0^2 on
    6..96. A fit is to be compared with this, not with the asymptote.

    Args:
        depths: L in blocks, at least two different ones.
        v_over_s0: v / s0^2: mean square that one block adds, over that of the stream
            that enters the first block.

    Raises:
        ValueError: fewer than two depths; a ratio that is negative or not finite.
    """
    if not (math.isfinite(v_over_s0) and v_over_s0 >= 0):
        raise ValueError(f"v / s0^2 must be finite and not negative, got {v_over_s0}")
    x = checked_depths(depths)
    return float(slopes(np.log(x), -0.5 * np.log1p(v_over_s0 * x)[None])[0])


def kind_of(p: float, power: float, exponential: float, n_depths: int) -> str:
    if abs(p) < FLAT_EXPONENT and max(power, exponential) < FLAT_RESIDUAL:
        return "flat"
    if n_depths == 2:
        return "undetermined"
    return "power" if power < exponential else "exponential"


def max_residual(x: np.ndarray, y: np.ndarray) -> float:
    fit = y.mean() + slopes(x, y[None])[0] * (x - x.mean())
    return float(np.abs(y - fit).max())


def _theil_sen(x: np.ndarray, y: np.ndarray) -> float:
    i, j = np.triu_indices(len(x), k=1)
    return float(np.median((y[j] - y[i]) / (x[j] - x[i])))
