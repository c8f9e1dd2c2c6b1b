"""Means over seeds with Student-t intervals.

Seeds are replicates: independent draws of the same experiment. An interval is about
the mean over seeds, at the given level, under the usual normal approximation.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

NOT_KNOWN = math.nan


@dataclass(frozen=True)
class Interval:
    """A mean over n seeds.

    Attributes:
        mean: the estimate (a geometric mean where the maker says so).
        low, high: ends of the interval; NaN if n = 1, where there is none.
        half_width: t_{n-1} * sd / sqrt(n), of the logarithms for a geometric mean;
            NaN if n = 1.
        sd: sample standard deviation (n - 1 below); NaN if n = 1.
        n: number of seeds.
    """

    mean: float
    low: float
    high: float
    half_width: float
    sd: float
    n: int

    @property
    def has_interval(self) -> bool:
        """One seed says nothing about the scatter, so nothing about the error."""
        return self.n > 1


def t_interval(values: Sequence[float], *, level: float = 0.95) -> Interval:
    """Arithmetic mean +- t_{n-1, (1+level)/2} * sd / sqrt(n), in float64.

    Raises:
        ValueError: no values, a value that is not finite, a level outside (0, 1).
    """
    if not 0 < level < 1:
        raise ValueError(f"level must be between 0 and 1, got {level}")
    x = np.asarray(values, dtype=np.float64)
    if x.ndim != 1 or x.size == 0:
        raise ValueError(f"expected a list of at least one value, got shape {x.shape}")
    if not np.isfinite(x).all():
        raise ValueError(f"values must be finite, got {x[~np.isfinite(x)][0]}")
    mean, n = float(x.mean()), x.size
    if n == 1:
        return Interval(mean, NOT_KNOWN, NOT_KNOWN, NOT_KNOWN, NOT_KNOWN, 1)
    sd = float(x.std(ddof=1))
    half = float(stats.t.ppf((1 + level) / 2, n - 1)) * sd / math.sqrt(n)
    return Interval(mean, mean - half, mean + half, half, sd, n)


def geometric_interval(values: Sequence[float], *, level: float = 0.95) -> Interval:
    """Geometric mean with the exponentials of the t interval of the logarithms.

    For quantities whose scatter is a factor (gradient norms): the interval is not
    symmetric. `half_width` and `sd` are those of the logarithms.

    Raises:
        ValueError: as `t_interval`; a value that is not positive.
    """
    x = np.asarray(values, dtype=np.float64)
    if not (x > 0).all():
        raise ValueError(f"values must be positive, got {x[~(x > 0)][0]}")
    logs = t_interval(np.log(x), level=level)
    low, high = math.exp(logs.low), math.exp(logs.high)
    return Interval(math.exp(logs.mean), low, high, logs.half_width, logs.sd, logs.n)


def paired_difference(
    first: Mapping[int, float], second: Mapping[int, float], *, level: float = 0.95
) -> Interval:
    """Mean of second - first over the seeds that both have.

    Runs of one seed share data order and often initial values, so their difference
    scatters less than either; the pairing keeps that.

    Args:
        first, second: seed -> value.

    Raises:
        ValueError: no seed in common; as `t_interval`.
    """
    seeds = sorted(first.keys() & second.keys())
    if not seeds:
        raise ValueError(f"no seed in common: {sorted(first)} against {sorted(second)}")
    return t_interval([second[s] - first[s] for s in seeds], level=level)


def jackknife_interval(
    rows: np.ndarray, estimate: Callable[[np.ndarray], float], level: float = 0.95
) -> Interval:
    """The estimate from all rows, with the t interval of the jackknife.

        pseudo-value_i = n * estimate(all) - (n - 1) * estimate(all but row i)

    For numbers that are not a mean over seeds (a ratio of fitted coefficients), where
    an average of one estimate per seed would be biased. `mean` is the estimate itself;
    an estimate that is infinite has no interval.

    Args:
        rows: one per seed, along the first axis.
        estimate: rows -> number.

    Raises:
        ValueError: no rows, a level outside (0, 1).
    """
    n = len(rows)
    if n == 0:
        raise ValueError("expected at least one row, got none")
    mean = float(estimate(rows))
    without = [estimate(np.delete(rows, i, axis=0)) for i in range(n)] if n > 1 else []
    if n == 1 or not np.isfinite([mean, *without]).all():
        return Interval(mean, NOT_KNOWN, NOT_KNOWN, NOT_KNOWN, NOT_KNOWN, n)
    pseudo = n * mean - (n - 1) * np.asarray(without)
    half = t_interval(pseudo, level=level)
    return Interval(
        mean,
        mean - half.half_width,
        mean + half.half_width,
        half.half_width,
        half.sd,
        n,
    )
