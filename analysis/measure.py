"""The number that an expectation is about, with its interval over seeds."""

import math
from collections.abc import Mapping

import numpy as np
import polars as pl

from analysis.depths import depth_sample, probe_values, profile_lists
from analysis.expectations import ALL, Expectation, split_quantity
from analysis.laws.data import slopes
from analysis.laws.linear import linear_law
from analysis.laws.power import slope_interval
from analysis.laws.profile import profile_law
from analysis.load import Runs
from analysis.losses import ENDS, final_losses
from analysis.stats import Interval, geometric_interval, t_interval

AXES = {"power": np.log, "exponential": np.asarray, "sqrt": np.sqrt}


def measure(wanted: Expectation, runs: pl.DataFrame, table: Runs) -> Interval:
    """The fitted number of the runs of one variant.

    Raises:
        ValueError: what is missing, in words.
    """
    if wanted.quantity in ENDS:
        ends = final_losses(runs, table.metrics, wanted.quantity)
        if ends.is_empty():
            what = wanted.quantity.replace("val_", "validation ")
            raise ValueError(f"no completed run with a {what}")
        return t_interval(ends["value"].to_list())
    quantity, layer = _probe_of(wanted.quantity, table.probes)
    if layer == ALL:
        return _over_layers(wanted, quantity, runs, table.probes)
    by_seed, depths = _over_depths(wanted, quantity, layer, runs, table.probes)
    if wanted.against is not None:
        name, other_layer = _probe_of(wanted.against, table.probes)
        other, _ = _over_depths(wanted, name, other_layer, runs, table.probes)
        return _against(wanted.fit, other, by_seed)
    return _fit(wanted, depths, by_seed)


def _probe_of(text: str, probes: pl.DataFrame) -> tuple[str, str | int]:
    """The name in the probes, and the layer; a probe of one number needs none."""
    quantity, layer = split_quantity(text)
    names = set(probes["quantity"].unique())
    if quantity not in names and f"grad_norm/{quantity}" in names:
        quantity = f"grad_norm/{quantity}"
    if layer is None:
        sizes = probes.filter(quantity=quantity)["values"].list.len()
        if (sizes.max() or 0) > 1:
            raise ValueError(f"{quantity!r} has layers: end it in first, last or all")
    return quantity, layer or "last"


def _over_layers(wanted, quantity, runs, probes) -> Interval:
    lists = profile_lists(runs, probes, quantity, wanted.depth)
    if not lists:
        raise ValueError(f"no completed run of depth {wanted.depth} has {quantity}")
    if wanted.fit == "ratio":
        return _factor([values[0] / values[-1] for values in lists.values()])
    if wanted.fit in ("power", "exponential"):
        law = profile_law(lists, from_block=wanted.from_block)
        return law.exponent if wanted.fit == "power" else law.rate
    x = np.arange(wanted.from_block, len(next(iter(lists.values()))) + 1)
    tails = {seed: v[wanted.from_block - 1 :] for seed, v in lists.items()}
    return _slope(wanted.fit, x, tails)


def _over_depths(wanted, quantity, layer, runs, probes):
    """(seed -> value at each depth, depths)."""
    values = probe_values(runs, probes, quantity, layer)
    if wanted.fit == "mean":
        values = values.filter(n_layers=wanted.depth)
    elif wanted.depths is not None:
        values = values.filter(pl.col("n_layers").is_in(wanted.depths))
    is_positive = wanted.fit not in ("linear", "mean", "constant")
    sample = depth_sample(values, is_positive=is_positive)
    if not sample.points:
        at = f" at depth {wanted.depth}" if wanted.fit == "mean" else ""
        raise ValueError(f"no completed run recorded {quantity}{at}")
    if len(sample.depths) < 2 and wanted.fit != "mean":
        raise ValueError(f"one depth only: {sample.depths[0]}")
    if not sample.by_seed:
        raise ValueError("no seed reached every depth")
    return sample.by_seed, sample.depths


def _fit(wanted: Expectation, depths, by_seed: Mapping) -> Interval:
    columns = np.asarray(list(by_seed.values()), float)
    if wanted.fit == "mean":
        return t_interval(columns[:, 0])
    if wanted.fit == "constant":
        intervals = [t_interval(column) for column in columns.T]
        return max(intervals, key=lambda i: abs(i.mean - wanted.expected))
    if wanted.fit == "inverse_square":
        return linear_law(depths, by_seed).ratio
    if wanted.fit == "ratio":
        first, last = (depths.index(wanted.depths[i]) for i in (0, -1))
        return _factor(columns[:, last] / columns[:, first])
    return _slope(wanted.fit, depths, by_seed)


def _slope(fit: str, x, by_seed: Mapping) -> Interval:
    x = np.asarray(x, float)
    if fit == "linear":
        return t_interval(slopes(x, np.asarray(list(by_seed.values()), float)))
    return slope_interval(AXES[fit](x), by_seed)


def _against(fit: str, other: Mapping, by_seed: Mapping) -> Interval:
    """Slope on another quantity of the same network, one per seed over its depths."""
    own = []
    for seed in sorted(by_seed.keys() & other.keys()):
        x, y = np.asarray(other[seed], float), np.asarray(by_seed[seed], float)
        if fit == "power":
            x, y = np.log(x), np.log(y)
        if len(x) == len(y) and np.ptp(x) > 0:
            own.append(slopes(x, y[None])[0])
    if not own:
        raise ValueError("no seed has both quantities at every depth")
    return t_interval(own)


def _factor(ratios) -> Interval:
    """A geometric mean; its longer side stands for both, as tolerances are symmetric."""
    found = geometric_interval(ratios)
    if not found.has_interval:
        return found
    half = found.high - found.mean
    sd = found.sd * half / found.half_width if found.half_width else 0.0
    return Interval(found.mean, found.low, found.high, half, sd, found.n)


def is_finite(interval: Interval) -> bool:
    """Whether the fit gave a number at all (a / b of what does not grow is infinite)."""
    return math.isfinite(interval.mean)
