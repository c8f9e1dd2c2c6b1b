"""How a norm depends on depth: power, exponential, and 1/sqrt(s0^2 + v L) laws.

L is the number of blocks, g a norm measured in independent networks, one for every
(seed, depth). Scatter between networks is a factor, so everything is fitted to ln g.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

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


@dataclass(frozen=True)
class LinearLaw:
    """A fit of g^-2 = a + b L, which is g = C / sqrt(s0^2 + v L).

    Attributes:
        intercept, slope: a = s0^2 / C^2 and b = v / C^2.
        constant: C = s0 / sqrt(a), for the given s0^2; NaN if a <= 0.
        s0_square_over_v: a / b; infinite if b <= 0 (no growth with depth).
        r_squared: of g^-2, unweighted.
        max_residual: largest |fit / g^-2 - 1|.
    """

    intercept: float
    slope: float
    constant: float
    s0_square_over_v: float
    r_squared: float
    max_residual: float


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
    x, logs = _checked(depths, values_by_seed)
    log_x, means = np.log(x), logs.mean(axis=0)
    slopes = _slopes(log_x, logs)
    exponent = t_interval(slopes, level=level)
    power = _max_residual(log_x, means)
    exponential = _max_residual(x, means)
    return PowerLaw(
        exponent=exponent,
        amplitude=math.exp(means.mean() - exponent.mean * log_x.mean()),
        slopes=dict(zip(values_by_seed, slopes.tolist(), strict=True)),
        depths=tuple(int(d) for d in x),
        geometric_means=tuple(np.exp(means).tolist()),
        theil_sen=_theil_sen(log_x, means),
        max_residual_power=power,
        max_residual_exponential=exponential,
        rate=t_interval(_slopes(x, logs), level=level),
        kind=_kind(exponent.mean, power, exponential, len(x)),
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
    return t_interval(_slopes(x, _log_values(len(x), values_by_seed)), level=level)


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
    x = _checked_depths(depths)
    return float(_slopes(np.log(x), -0.5 * np.log1p(v_over_s0 * x)[None])[0])


def linear_law(
    depths: Sequence[int],
    values_by_seed: Mapping[int, Sequence[float]],
    *,
    s0_square: float = 1.0,
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
    x, logs = _checked(depths, values_by_seed)
    y = np.exp(-2 * logs.mean(axis=0))
    design = np.stack([np.ones_like(x), x], axis=1) / y[:, None]
    (a, b), *_ = np.linalg.lstsq(design, np.ones_like(y), rcond=None)
    fit = a + b * x
    spread = ((y - y.mean()) ** 2).sum()
    return LinearLaw(
        intercept=float(a),
        slope=float(b),
        constant=math.sqrt(s0_square / a) if a > 0 else math.nan,
        s0_square_over_v=float(a / b) if b > 0 else math.inf,
        r_squared=float(1 - ((y - fit) ** 2).sum() / spread) if spread else math.nan,
        max_residual=float(np.abs(fit / y - 1).max()),
    )


def _kind(p: float, power: float, exponential: float, n_depths: int) -> str:
    if abs(p) < FLAT_EXPONENT and max(power, exponential) < FLAT_RESIDUAL:
        return "flat"
    if n_depths == 2:
        return "undetermined"
    return "power" if power < exponential else "exponential"


def _slopes(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Least-squares slopes of each row of y [seed, depth] on x [depth]."""
    centred = x - x.mean()
    return y @ centred / (centred @ centred)


def _max_residual(x: np.ndarray, y: np.ndarray) -> float:
    fit = y.mean() + _slopes(x, y[None])[0] * (x - x.mean())
    return float(np.abs(y - fit).max())


def _theil_sen(x: np.ndarray, y: np.ndarray) -> float:
    i, j = np.triu_indices(len(x), k=1)
    return float(np.median((y[j] - y[i]) / (x[j] - x[i])))


def _checked(depths, values_by_seed) -> tuple[np.ndarray, np.ndarray]:
    """Returns depths ascending and ln g as [seed, depth]."""
    x = _checked_depths(depths)
    logs = _log_values(len(x), values_by_seed)
    order = np.argsort(x)
    return x[order], logs[:, order]


def _checked_depths(depths) -> np.ndarray:
    x = np.asarray(list(depths), dtype=np.float64)
    if len(x) < 2:
        raise ValueError(f"a law needs at least two depths, got {list(depths)}")
    if len(np.unique(x)) < len(x):
        raise ValueError(f"a depth appears twice in {list(depths)}")
    if not (np.isfinite(x).all() and (x >= 1).all()):
        raise ValueError(f"depths must be at least 1, got {list(depths)}")
    return x


def _log_values(n_depths: int, values_by_seed) -> np.ndarray:
    if not values_by_seed:
        raise ValueError("a law needs at least one seed, got none")
    for seed, values in values_by_seed.items():
        if len(values) != n_depths:
            raise ValueError(
                f"seed {seed} has {len(values)} values for {n_depths} depths"
            )
        for value in values:
            if not (math.isfinite(value) and value > 0):
                raise ValueError(
                    f"values must be positive and finite, got {value} for seed {seed}"
                )
    return np.log(np.asarray(list(values_by_seed.values()), dtype=np.float64))
