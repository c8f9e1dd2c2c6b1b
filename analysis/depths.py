"""Values of a probe over depths, over layers and over seeds."""

from collections import Counter
from dataclasses import dataclass

import polars as pl

UP = "grad_norm/ffn/up/kernel"  # W1
DOWN = "grad_norm/ffn/down/kernel"  # W2
STREAM = "stream_mean_square"
LAYERS = ("first", "last")


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


def probe_values(
    runs: pl.DataFrame,
    probes: pl.DataFrame,
    quantity: str,
    layer: str | int = "last",
) -> pl.DataFrame:
    """One row per completed run: run_id, family, variant, n_layers, seed, value.

    `value` is the entry of one layer (site) at the first probed step, which for a depth
    run is step 0; null where it was not finite, or where there is no such layer.

    Args:
        layer: "first", "last", or the number of an entry, 1 next to the input.

    Raises:
        ValueError: `layer` is none of these.
    """
    of_layers = pl.col("values").list
    if layer in LAYERS:
        entry = of_layers.first() if layer == "first" else of_layers.last()
    elif isinstance(layer, int) and layer >= 1:
        entry = of_layers.get(layer - 1, null_on_oob=True)
    else:
        raise ValueError(
            f"layer must be one of {', '.join(LAYERS)} or a number from 1, got {layer!r}"
        )
    keep = ["run_id", "family", "variant", "n_layers", "seed"]
    return (
        runs.filter(pl.col("state") == "completed")
        .select(keep)
        .join(
            first_rows(probes, quantity).select("run_id", entry.alias("value")),
            on="run_id",
            how="inner",
            maintain_order="left",
        )
    )


def first_rows(probes: pl.DataFrame, quantity: str) -> pl.DataFrame:
    """The row of each run at its first probed step."""
    return (
        probes.filter(pl.col("quantity") == quantity)
        .sort("run_id", "step", maintain_order=True)
        .unique("run_id", keep="first", maintain_order=True)
    )


def profile_lists(
    runs: pl.DataFrame, probes: pl.DataFrame, quantity: str, depth: int
) -> dict[int, tuple[float, ...]]:
    """seed -> values over all layers of the completed run of this depth.

    A seed with an entry that is not finite and positive is left out.
    """
    rows = (
        runs.filter(state="completed", n_layers=depth)
        .drop_nulls("seed")
        .select("run_id", "seed")
        .join(first_rows(probes, quantity), on="run_id", maintain_order="left")
    )
    found = {}
    for seed, values in rows.select("seed", "values").rows():
        if values and all(value is not None and value > 0 for value in values):
            found.setdefault(seed, tuple(values))
    return found


def depth_sample(values: pl.DataFrame, *, is_positive: bool = True) -> DepthSample:
    """Arranges the rows of one variant (`probe_values`) for a fit.

    The grid is every depth that at least half of the seeds reached; a seed without
    all of them takes no part in the fit, since slopes over different grids are not
    replicates of one number. Both are said in `left_out`.

    Args:
        is_positive: leave out what has no logarithm.
    """
    notes = []
    usable = values.drop_nulls(["n_layers", "seed", "value"])
    if is_positive:
        usable = usable.filter(pl.col("value") > 0)
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
