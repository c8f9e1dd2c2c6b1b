"""Which theory a variant should follow, chosen by its stream and not by its gradient."""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import polars as pl

from analysis import meanfield
from analysis.depths import STREAM, first_rows, probe_values
from analysis.laws.power import PowerLaw, finite_grid_exponent, slope_interval

BRANCH = "branch_mean_square"
# A measured v or stream counts as constant over depths, or as what theory says, within
# this factor: wider than the scatter of a few seeds, far from a factor of 64.
SAME_FACTOR = 1.5
PRE_TYPE_EXPONENT = -0.2
# Placement or residual scheme -> theory, exponent of large L, and what the scheme takes
# off the mean square of the first branch (DeepNorm scales both weights by
# beta = (8 L)^-1/4).
NAMED = {
    "deepnorm": (meanfield.deepnorm, -0.5, lambda depth: 8 * depth),
    "layernorm_scaling": (meanfield.layernorm_scaling, -0.5, lambda depth: 1),
    # Measured before the branch is scaled, so that nothing is off.
    "depth_mup": (meanfield.depth_scaled, -0.5, lambda depth: 1),
    "completep": (
        functools.partial(meanfield.depth_scaled, power=1.0),
        -1.0,
        lambda depth: 1,
    ),
}
# These have factors of their own too, and no theory here of what a probe shows of them.
UNKNOWN = ("keel", "residual_dual")
# So many depths between which a curve without a closed form is interpolated.
CURVE_POINTS = 20


@dataclass(frozen=True)
class Theory:
    """What a block should do at these s0^2 and v.

        growing     g = C / sqrt(s0^2 + v L)     asymptotically L^-1/2
        flat        g = C                        L^0
        mean field  no power on these depths: `analysis.meanfield`, by name

    Attributes:
        shape: "growing", "flat", the name of a mean-field scheme ("pointwise",
            "deepnorm", ...), or "none" (no premise holds, or not measured).
        exponent: what a power-law fit finds on the depths of the sample; NaN if none.
        asymptote: of large L; NaN if none.
        s0_square, v: measured means over runs; NaN without the probes. For a pointwise
            norm v is per unit of what the branch reads, as in the theory.
        reason: why this shape, in words.
        scheme: depth -> MeanField at these s0^2 and v; None if there is none.
    """

    shape: str
    exponent: float
    asymptote: float
    s0_square: float
    v: float
    reason: str
    scheme: Callable | None = None

    def relative(self, depths) -> np.ndarray:
        """g / C of the last block at these depths, whole numbers or not."""
        depths = np.asarray(depths, float)
        if self.shape == "growing":
            return 1 / np.sqrt(self.s0_square + self.v * depths)
        if self.scheme is None:
            return np.ones_like(depths)
        if depths.size <= CURVE_POINTS and (depths == depths.round()).all():
            return meanfield.over_depths(self.scheme, depths.astype(int))
        grid = np.geomspace(
            max(1, math.floor(depths.min())), depths.max(), CURVE_POINTS
        )
        grid = np.unique([*np.round(grid), math.ceil(depths.max())])
        known = np.log(meanfield.over_depths(self.scheme, grid.astype(int)))
        return np.exp(np.interp(np.log(depths), np.log(grid), known))


def theory_for(
    runs: pl.DataFrame, probes: pl.DataFrame, variant: str, law: PowerLaw
) -> Theory:
    """Chooses the theory from the measured stream, not from the gradient it predicts.

    With s0^2 (`input_mean_square`), v (`branch_gain`) and the last entry of
    `stream_mean_square`. A normalizer that is a pointwise function, and a placement
    with factors of its own (DeepNorm, LayerNorm-Scaling, depth-muP), are known by their
    names in the config and count if the stream does what their theory says. Otherwise v
    must not depend on depth: growing if the stream follows s0^2 + v L, flat if it is
    the same at all depths. Runs without the stream probe are judged by the fitted
    exponent (below -0.2: growing).

    Args:
        runs, probes: of one family.
        variant: its label.
        law: the fit to compare with.
    """
    of_variant = runs.filter(pl.col("variant") == variant)

    def per_depth(quantity: str, layer: str = "last") -> dict[int, float]:
        rows = probe_values(of_variant, probes, quantity, layer).filter(
            pl.col("n_layers").is_in(law.depths)
        )
        means = rows.group_by("n_layers").agg(pl.col("value").mean()).drop_nulls()
        return dict(sorted(means.rows()))

    s0_by_depth, v_by_depth = per_depth("input_mean_square"), per_depth("branch_gain")
    if not (s0_by_depth and v_by_depth):
        return _no_theory(math.nan, math.nan, "s0^2 and v were not recorded")
    s0 = float(np.mean(list(s0_by_depth.values())))
    v = float(np.mean(list(v_by_depth.values())))
    if s0 <= 0 or v < 0:
        return _no_theory(s0, v, "s0^2 must be positive and v not negative")
    stream = per_depth(STREAM)
    norm = _only(of_variant, "config.model.norm._target_").rpartition(".")[2]
    if _name(of_variant) in UNKNOWN:
        reason = f"{_name(of_variant)} has factors of its own"
        return _no_theory(s0, v, reason)
    if norm in meanfield.POINTWISE or _name(of_variant) in NAMED:
        if not _is_one_site_per_block(of_variant, probes):
            return _no_theory(s0, v, "only known for feed-forward stacks")
        known = _named_scheme(of_variant, norm, s0, per_depth(BRANCH, "first"))
        if known is None:
            return _no_theory(s0, v, f"{norm} does not divide by the scale")
        return _mean_field(*known, s0, stream, law)
    if not is_constant(v_by_depth.values()):
        return _no_theory(s0, v, "v depends on depth")
    if stream:
        grows = _is_same(stream, {d: s0 + v * d for d in stream})
        reason = "stream follows s0^2 + v L" if grows else "stream constant over depth"
        if not grows and not is_constant(stream.values()):
            return _no_theory(s0, v, "stream neither constant nor s0^2 + v L")
    else:
        grows = law.exponent.mean < PRE_TYPE_EXPONENT
        reason = "by the fitted exponent: the stream was not recorded"
    if grows:
        exponent = finite_grid_exponent(law.depths, v / s0)
        return Theory("growing", exponent, -0.5, s0, v, reason)
    return Theory("flat", 0.0, 0.0, s0, v, reason)


def _is_one_site_per_block(runs: pl.DataFrame, probes: pl.DataFrame) -> bool:
    rows = runs.join(first_rows(probes, BRANCH), on="run_id")
    sites = rows.select(pl.col("values").list.len() == pl.col("n_layers"))
    return rows.height > 0 and sites.to_series().all()


def _named_scheme(runs: pl.DataFrame, norm: str, s0: float, first: dict[int, float]):
    """(name, asymptote, v, depth -> MeanField), or None where that is not known.

    v is that of the first block, which reads a known input; what the scheme itself
    takes off the branch is put back.
    """
    if not first or min(first.values()) <= 0:
        return None
    place = _only(runs, "choice.placement")
    if norm in meanfield.POINTWISE:
        alpha = _only(runs, "config.model.norm.alpha_init", cast=float)
        if place != "pre" or not alpha:
            return None
        f, _ = meanfield.POINTWISE[norm]
        read = meanfield.gaussian_mean(lambda z: f(alpha * math.sqrt(s0) * z) ** 2)
        v = float(np.mean(list(first.values()))) / read

        def scheme(depth: int):
            return meanfield.pointwise(
                depth, function=norm, alpha=alpha, s0_square=s0, v=v
            )

        return "pointwise", -0.25, v, scheme
    name = _name(runs)
    function, asymptote, factor = NAMED[name]
    v = float(np.mean([value * factor(depth) for depth, value in first.items()]))
    return name, asymptote, v, lambda depth: function(depth, s0_square=s0, v=v)


def _mean_field(name, asymptote, v, scheme, s0, stream, law) -> Theory:
    predicted = {d: float(scheme(d).stream[-1]) for d in stream}
    if stream and not _is_same(stream, predicted):
        return _no_theory(s0, v, f"stream is not that of {name}")
    logs = meanfield.over_depths(scheme, law.depths)
    exponent = slope_interval(np.log(law.depths), {0: logs}).mean
    said = "stream is that of" if stream else "by its name, without the stream:"
    return Theory(name, exponent, asymptote, s0, v, f"{said} {name}", scheme)


def _name(runs: pl.DataFrame) -> str:
    """The residual scheme where that is named in `NAMED`, else the placement."""
    scheme = _only(runs, "choice.residual")
    return scheme if scheme in NAMED else _only(runs, "choice.placement")


def _only(runs: pl.DataFrame, column: str, cast: type = str):
    """The one value of a config column, or a blank one."""
    found = set(runs[column].drop_nulls()) if column in runs.columns else set()
    if len(found) != 1:
        return cast()
    try:
        return cast(found.pop())
    except ValueError:  # `alpha_init: auto`
        return cast()


def _is_same(measured: dict[int, float], predicted: dict[int, float]) -> bool:
    ratios = [measured[d] / predicted[d] for d in measured]
    return all(1 / SAME_FACTOR <= ratio <= SAME_FACTOR for ratio in ratios)


def is_constant(values) -> bool:
    """Whether positive values are the same within `SAME_FACTOR`."""
    values = list(values)
    return min(values) > 0 and max(values) <= SAME_FACTOR * min(values)


def _no_theory(s0_square: float, v: float, reason: str) -> Theory:
    return Theory("none", math.nan, math.nan, s0_square, v, reason)
