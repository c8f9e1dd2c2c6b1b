"""Values of a probe over depths and seeds, and the theory they are compared with."""

import math
from collections import Counter
from dataclasses import dataclass

import numpy as np
import polars as pl

from analysis.laws import PowerLaw, finite_grid_exponent

UP = "grad_norm/ffn/up/kernel"  # W1
DOWN = "grad_norm/ffn/down/kernel"  # W2
STREAM = "stream_mean_square"
LAYERS = ("first", "last")

# A measured v or stream counts as constant over depths, or as equal to s0^2 + v L,
# within this factor: wider than the scatter of a few seeds, far from a factor of 64.
SAME_FACTOR = 1.5
PRE_TYPE_EXPONENT = -0.2


@dataclass(frozen=True)
class DepthSample:
    """One quantity of one variant.

    Attributes:
        points: (depth, seed, value) of every usable run, ascending.
        depths: the grid of the fit.
        by_seed: seed -> value at each of `depths`; only seeds that have them all.
        left_out: what is missing from the fit, in words, one entry per kind.
    """

    points: tuple[tuple[int, int, float], ...]
    depths: tuple[int, ...]
    by_seed: dict[int, tuple[float, ...]]
    left_out: tuple[str, ...]

    def at(self, depth: int) -> list[float]:
        """Values of all seeds at one depth, complete seeds or not."""
        return [value for d, _, value in self.points if d == depth]


@dataclass(frozen=True)
class Theory:
    """What a block with a scale-free normalizer should do at these s0^2 and v.

        growing stream:  g = C / sqrt(s0^2 + v L)     asymptotically L^-1/2
        constant stream: g = C                        L^0

    Attributes:
        shape: "growing", "flat" or "none" (neither premise holds, or not measured).
        exponent: what a power-law fit finds on the depths of the sample; NaN if none.
        asymptote: -0.5, 0 or NaN.
        s0_square, v: measured means over runs; NaN without the probes.
        reason: why this shape, in words.
    """

    shape: str
    exponent: float
    asymptote: float
    s0_square: float
    v: float
    reason: str

    def relative(self, depths) -> np.ndarray:
        """g / C at these depths."""
        depths = np.asarray(depths, float)
        if self.shape == "growing":
            return 1 / np.sqrt(self.s0_square + self.v * depths)
        return np.ones_like(depths)


def probe_values(
    runs: pl.DataFrame, probes: pl.DataFrame, quantity: str, layer: str = "last"
) -> pl.DataFrame:
    """One row per completed run: run_id, family, variant, n_layers, seed, value.

    `value` is the entry of the first or last layer (site) at the first probed step,
    which for a depth run is step 0; null where it was not finite.

    Raises:
        ValueError: `layer` is neither "first" nor "last".
    """
    if layer not in LAYERS:
        raise ValueError(f"layer must be one of {', '.join(LAYERS)}, got {layer!r}")
    of_layers = pl.col("values").list
    entry = of_layers.first() if layer == "first" else of_layers.last()
    values = (
        probes.filter(pl.col("quantity") == quantity)
        .sort("run_id", "step", maintain_order=True)
        .unique("run_id", keep="first", maintain_order=True)
        .select("run_id", entry.alias("value"))
    )
    keep = ["run_id", "family", "variant", "n_layers", "seed"]
    return (
        runs.filter(pl.col("state") == "completed")
        .select(keep)
        .join(values, on="run_id", how="inner", maintain_order="left")
    )


def depth_sample(values: pl.DataFrame) -> DepthSample:
    """Arranges the rows of one variant (`probe_values`) for a fit.

    The grid is every depth that at least half of the seeds reached; a seed without
    all of them takes no part in the fit, since slopes over different grids are not
    replicates of one number. Both are said in `left_out`.
    """
    notes = []
    usable = values.drop_nulls(["n_layers", "seed"]).filter(pl.col("value") > 0)
    if usable.height < values.height:
        lost = values.height - usable.height
        notes.append(f"{lost} runs without a finite, positive value")
    single = usable.unique(["n_layers", "seed"], keep="first", maintain_order=True)
    if single.height < usable.height:
        notes.append(f"{usable.height - single.height} runs that repeat a seed")
    points = tuple(single.select("n_layers", "seed", "value").sort(pl.all()).rows())
    table = {(depth, seed): value for depth, seed, value in points}

    seeds = sorted({seed for _, seed, _ in points})
    reached = Counter(depth for depth, _, _ in points)
    depths = tuple(d for d in sorted(reached) if 2 * reached[d] >= len(seeds))
    rare = [str(d) for d in sorted(reached) if d not in depths]
    if rare:
        notes.append(f"depths {', '.join(rare)}: fewer than half of the seeds")
    complete = [s for s in seeds if all((d, s) in table for d in depths)]
    if len(complete) < len(seeds):
        lost = len(seeds) - len(complete)
        notes.append(f"{lost} of {len(seeds)} seeds not at every depth")
    by_seed = {s: tuple(table[d, s] for d in depths) for s in complete}
    return DepthSample(points, depths, by_seed, tuple(notes))


def theory_for(
    runs: pl.DataFrame, probes: pl.DataFrame, variant: str, law: PowerLaw
) -> Theory:
    """Chooses the theory from the measured stream, not from the gradient it predicts.

    With s0^2 (`input_mean_square`), v (`branch_gain`, which must not depend on depth)
    and the last entry of `stream_mean_square`: growing if the stream follows
    s0^2 + v L, flat if it is the same at all depths. Runs without the stream probe
    are judged by the fitted exponent (below -0.2: growing).

    Args:
        runs, probes: of one family.
        variant: its label.
        law: the fit to compare with.
    """

    def per_depth(quantity: str) -> dict[int, float]:
        rows = probe_values(runs, probes, quantity).filter(
            (pl.col("variant") == variant) & pl.col("n_layers").is_in(law.depths)
        )
        means = rows.group_by("n_layers").agg(pl.col("value").mean()).drop_nulls()
        return dict(means.rows())

    s0_by_depth, v_by_depth = per_depth("input_mean_square"), per_depth("branch_gain")
    if not (s0_by_depth and v_by_depth):
        return _no_theory(math.nan, math.nan, "s0^2 and v were not recorded")
    s0 = float(np.mean(list(s0_by_depth.values())))
    v = float(np.mean(list(v_by_depth.values())))
    if s0 <= 0 or v < 0:
        return _no_theory(s0, v, "s0^2 must be positive and v not negative")
    if not _is_constant(v_by_depth.values()):
        return _no_theory(s0, v, "v depends on depth")

    stream = per_depth(STREAM)
    if stream:
        ratios = [stream[d] / (s0 + v * d) for d in stream]
        grows = all(1 / SAME_FACTOR <= ratio <= SAME_FACTOR for ratio in ratios)
        reason = "stream follows s0^2 + v L" if grows else "stream constant over depth"
        if not grows and not _is_constant(stream.values()):
            return _no_theory(s0, v, "stream neither constant nor s0^2 + v L")
    else:
        grows = law.exponent.mean < PRE_TYPE_EXPONENT
        reason = "by the fitted exponent: the stream was not recorded"
    if grows:
        exponent = finite_grid_exponent(law.depths, v / s0)
        return Theory("growing", exponent, -0.5, s0, v, reason)
    return Theory("flat", 0.0, 0.0, s0, v, reason)


def _is_constant(values) -> bool:
    values = list(values)
    return min(values) > 0 and max(values) <= SAME_FACTOR * min(values)


def _no_theory(s0_square: float, v: float, reason: str) -> Theory:
    return Theory("none", math.nan, math.nan, s0_square, v, reason)
