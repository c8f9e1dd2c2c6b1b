"""Contrasts over seeds that all cells of a design share: tests, power and ratios.

Everything here takes one number per seed, already combined over the cells of that
seed, so that what a seed does to all of them has gone.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import optimize, stats

from analysis.decide import MAX_SEEDS
from analysis.stats import NOT_KNOWN, t_interval

EXACT_SEEDS = 16  # 65,536 sign patterns; beyond, patterns are drawn
DRAWS = 10_000


def combine(
    parts: Sequence[tuple[float, Mapping[int, float]]],
) -> dict[int, float]:
    """Seed -> weighted sum, over the seeds that all parts have.

    An interaction is ((1, y11), (-1, y01), (-1, y10), (1, y00)), a gap
    ((1, y1), (-1, y0)).
    """
    shared = set.intersection(*(set(values) for _, values in parts))
    return {s: sum(w * values[s] for w, values in parts) for s in sorted(shared)}


def t_p_value(values: Sequence[float]) -> float:
    """Two-sided p of Student's t test of mean 0; NaN for fewer than two values."""
    if len(values) < 2:
        return NOT_KNOWN
    found = t_interval(values)
    if found.sd == 0:
        return 1.0 if found.mean == 0 else 0.0
    t = found.mean / (found.sd / math.sqrt(found.n))
    return float(2 * stats.t.sf(abs(t), found.n - 1))


def sign_flip_p_value(values: Sequence[float]) -> float:
    """Two-sided p of the sum under all 2^n changes of sign; exact up to 16 values.

    Assumes only that the values are symmetric about 0. The smallest p is 2 / 2^n.
    """
    x = np.asarray(values, np.float64)
    if x.size == 0:
        return NOT_KNOWN
    if x.size <= EXACT_SEEDS:
        bits = (np.arange(2**x.size)[:, None] >> np.arange(x.size)) & 1
        signs = 1.0 - 2.0 * bits
        added = 0
    else:
        signs = np.random.default_rng(0).choice((1.0, -1.0), (DRAWS, x.size))
        added = 1  # the pattern that was observed is one of them
    # Patterns that give the same sum must tie whatever the rounding.
    limit = abs(x.sum()) - 1e-12 * np.abs(x).sum()
    hits = int((np.abs(signs @ x) >= limit).sum())
    return (hits + added) / (len(signs) + added)


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Adjusted p: below a level, the hypothesis is rejected at that family-wise level.

        adjusted_(i) = max over j <= i of min(1, (m - j + 1) p_(j)),  p_(1) <= p_(2) ...

    A p that is not known stays so and does not count as a test.

    Source: S. Holm, Scandinavian Journal of Statistics 6 (1979) 65-70.
    """
    known = sorted((p, name) for name, p in p_values.items() if not math.isnan(p))
    adjusted, highest = dict.fromkeys(p_values, NOT_KNOWN), 0.0
    for place, (p, name) in enumerate(known):
        highest = max(highest, min(1.0, (len(known) - place) * p))
        adjusted[name] = highest
    return adjusted


def power(effect: float, sd: float, n: int, *, level: float = 0.95) -> float:
    """Chance that the t interval of n values leaves out 0 (noncentral t).

    Args:
        effect: true mean of the values.
        sd: their standard deviation, positive.
    """
    bound = float(stats.t.ppf((1 + level) / 2, n - 1))
    shift = abs(effect) * math.sqrt(n) / sd
    # P(T < -bound) with a shift is P(T > bound) with the opposite one.
    both = stats.nct.sf(bound, n - 1, [shift, -shift])
    return float(np.clip(np.nansum(both), 0, 1))


def smallest_effect(sd: float, n: int, *, wanted: float = 0.8) -> float:
    """The effect that n seeds find with the wanted power; NaN for one seed."""
    if n < 2 or not math.isfinite(sd):
        return NOT_KNOWN
    if sd == 0:
        return 0.0
    high = 1.0
    while power(high, 1.0, n) < wanted:
        high *= 2
    return sd * float(optimize.brentq(lambda d: power(d, 1.0, n) - wanted, 0, high))


def seeds_for_power(sd: float, effect: float, *, wanted: float = 0.8) -> int | None:
    """The smallest n >= 2 that finds `effect` with the wanted power; None if unknown
    or beyond 100,000."""
    if not (math.isfinite(sd) and math.isfinite(effect)) or effect == 0:
        return None
    if sd == 0:
        return 2
    high = 2
    while power(effect, sd, high) < wanted:
        if high > MAX_SEEDS:
            return None
        high *= 2
    low = high // 2  # not enough, or 1
    while high - low > 1:
        middle = (low + high) // 2
        is_enough = power(effect, sd, middle) >= wanted
        low, high = (low, middle) if is_enough else (middle, high)
    return high


def bootstrap_interval(
    rows: np.ndarray,
    estimate: Callable[[np.ndarray], np.ndarray],
    *,
    level: float = 0.95,
    draws: int = DRAWS,
) -> tuple[float, float]:
    """Percentiles of an estimate over resampled seeds; the same every time.

    Too narrow for a handful of seeds: of three there are only ten different samples.

    Args:
        rows: [seeds, k], one row per seed.
        estimate: means [..., k] -> estimates [...].
    """
    rows = np.asarray(rows, np.float64)
    if len(rows) < 2:
        return NOT_KNOWN, NOT_KNOWN
    picked = np.random.default_rng(0).integers(len(rows), size=(draws, len(rows)))
    found = estimate(rows[picked].mean(axis=1))
    low, high = np.quantile(found, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


@dataclass(frozen=True)
class Ratio:
    """A ratio of two means over the same seeds.

    Attributes:
        value: the ratio; NaN where it is undefined.
        low, high: Fieller's interval (exact for normal values); NaN for one seed.
        boot_low, boot_high: percentiles over resampled seeds.
        n: seeds.
        reason: why it is undefined, or "".
    """

    value: float
    low: float
    high: float
    boot_low: float
    boot_high: float
    n: int
    reason: str = ""


def paired_ratio(
    numerator: Mapping[int, float],
    denominator: Mapping[int, float],
    *,
    level: float = 0.95,
) -> Ratio:
    """mean(numerator) / mean(denominator), undefined where the t interval of the
    denominator includes 0: there Fieller's interval has no ends.

    Source: E. C. Fieller, Journal of the Royal Statistical Society B 16 (1954) 175.
    """
    seeds = sorted(numerator.keys() & denominator.keys())
    n = len(seeds)
    blank = [NOT_KNOWN] * 5

    if n == 0:
        return Ratio(*blank, 0, "no seed in common")
    a = np.array([numerator[s] for s in seeds], np.float64)
    b = np.array([denominator[s] for s in seeds], np.float64)
    if n == 1:
        return Ratio(*blank, 1, "one seed: the denominator has no interval")
    t = float(stats.t.ppf((1 + level) / 2, n - 1))
    (saa, sab), (_, sbb) = np.cov(a, b) * t * t / n
    leading = b.mean() ** 2 - sbb
    if leading <= 0:
        return Ratio(*blank, n, "the interval of the denominator includes 0")
    middle, last = a.mean() * b.mean() - sab, a.mean() ** 2 - saa
    root = math.sqrt(max(0.0, middle * middle - leading * last))
    with np.errstate(divide="ignore", invalid="ignore"):
        boot = bootstrap_interval(
            np.stack([a, b], axis=1), lambda m: m[..., 0] / m[..., 1], level=level
        )
    low, high = (middle - root) / leading, (middle + root) / leading
    return Ratio(float(a.mean() / b.mean()), low, high, *boot, n)


def one_minus(ratio: Ratio) -> Ratio:
    """What is left when the ratio is taken away: the ends change places."""
    return Ratio(
        1 - ratio.value,
        1 - ratio.high,
        1 - ratio.low,
        1 - ratio.boot_high,
        1 - ratio.boot_low,
        ratio.n,
        ratio.reason,
    )
