"""Composite gain: what products of mixing matrices do to signal and gradient."""

import math
import re
from dataclasses import asdict

import numpy as np
import polars as pl

from analysis.depths import STREAM
from analysis.frames import PROBE_COLUMNS
from analysis.stats import geometric_interval
from analysis.theory import BRANCH

INPUT = "input_mean_square"
RATIO = "branch_to_stream"
GAIN = "composite_gain"
DIRECTIONS = ("forward", "backward")
MEASURES = ("max", "min", "norm")
FARTHEST = "farthest"
_ENTRY = re.compile(r"^mixing/(\d+)/(\d+)$")


def composite_gains(mixings: np.ndarray) -> dict[str, np.ndarray]:
    """Natural logarithms of the gains at every sub-layer l of L, each [L].

        forward   P = H_l ... H_2 H_1       its row sums: what reaches sub-layer l
        backward  P = H_L ... H_(l+1) H_l   its column sums: what comes back to it

    `forward/max` and `backward/max` are of the largest absolute sum, the gain of the
    paper; `*/min` of the smallest, since the maximum hides what is lost; `*/norm` of
    the largest sum of absolute values, which is larger where entries are negative.

    Args:
        mixings: [L, n, n] of successive sub-layers, new[i] = sum_j H[i, j] x[j].

    Source: arXiv 2512.24880, figures 3, 7 and 8; min and norm are additions.
    """
    mixings = np.asarray(mixings, np.float64)
    length, n, _ = mixings.shape
    gains = {f"{d}/{m}": np.empty(length) for d in DIRECTIONS for m in MEASURES}
    ahead, back = np.eye(n), np.eye(n)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        for i in range(length):
            ahead = mixings[i] @ ahead
            _note(gains, "forward", i, ahead, axis=1)
            j = length - 1 - i
            back = back @ mixings[j]
            _note(gains, "backward", j, back, axis=0)
    return gains


def _note(gains: dict, direction: str, at: int, product: np.ndarray, axis: int) -> None:
    sums = np.abs(product.sum(axis=axis))
    sizes = np.abs(product).sum(axis=axis)
    for measure, value in zip(
        MEASURES, (sums.max(), sums.min(), sizes.max()), strict=True
    ):
        gains[f"{direction}/{measure}"][at] = np.log(value)


def farthest(logs_max: np.ndarray, logs_min: np.ndarray) -> float:
    """The logarithm farthest from 0 of all largest and smallest sums."""
    logs = np.concatenate([logs_max, logs_min])
    return float(logs[np.argmax(np.abs(logs))])


def mixing_matrices(probes: pl.DataFrame) -> dict[str, tuple[int, np.ndarray]]:
    """run_id -> (step, [sub-layers, n, n]) at the last probed step of the run.

    A run whose matrices are not finite, or not there for every sub-layer, is left out.
    """
    rows = probes.filter(pl.col("quantity").str.contains(_ENTRY.pattern))
    rows = rows.filter(pl.col("step") == pl.col("step").max().over("run_id"))
    found = {}
    for (run_id,), own in rows.group_by("run_id", maintain_order=True):
        lists = dict(own.select("quantity", "values").rows())
        places = [tuple(map(int, _ENTRY.match(name).groups())) for name in lists]
        n = 1 + max(max(place) for place in places)
        lengths = {len(values) for values in lists.values()}
        if len(places) != n * n or len(lengths) != 1:
            continue
        matrices = np.full((*lengths, n, n), np.nan)
        for (i, j), values in zip(places, lists.values(), strict=True):
            matrices[:, i, j] = np.asarray(values, np.float64)  # null becomes NaN
        if len(matrices) and np.isfinite(matrices).all():
            found[run_id] = (own["step"][0], matrices)
    return found


def gain_rows(probes: pl.DataFrame) -> pl.DataFrame:
    """Composite gains as rows of probes, at the last probed step of each run.

    `composite_gain/<direction>/<max|min|norm>` per site, not logarithms; and
    `composite_gain/<direction>/farthest`, one number: of all largest and smallest sums
    over the depth that which is farthest from 1 (as a factor).

    The matrices of a run are means over tokens, as in figure 8 of the paper; its figure 3
    averages the gains of single tokens. Where all rows sum to 1 the two agree (forward).
    """
    rows = []
    for run_id, (step, matrices) in mixing_matrices(probes).items():
        gains = composite_gains(matrices)
        for name, logs in gains.items():
            rows.append((run_id, step, f"{GAIN}/{name}", "site", _finite(np.exp(logs))))
        for direction in DIRECTIONS:
            one = farthest(gains[f"{direction}/max"], gains[f"{direction}/min"])
            name = f"{GAIN}/{direction}/{FARTHEST}"
            rows.append((run_id, step, name, "scalar", _finite(np.exp([one]))))
    return pl.DataFrame(rows, schema=PROBE_COLUMNS, orient="row")


def ratio_rows(probes: pl.DataFrame) -> pl.DataFrame:
    """`branch_to_stream` per site: RMS of a branch over RMS of the stream it meets.

    The branch as the sub-layer leaves it, before a factor of the residual scheme.
    """
    wide = (
        probes.filter(pl.col("quantity").is_in([STREAM, BRANCH, INPUT]))
        .pivot(
            "quantity", index=["run_id", "step"], values="values", maintain_order=True
        )
        .drop_nulls()
    )
    if not {STREAM, BRANCH, INPUT} <= set(wide.columns):
        return pl.DataFrame(schema=PROBE_COLUMNS)
    rows = []
    for row in wide.rows(named=True):
        before = np.asarray([*row[INPUT], *row[STREAM][:-1]], np.float64)
        branch = np.asarray(row[BRANCH], np.float64)
        if len(before) != len(branch):
            continue
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.sqrt(branch / before)
        rows.append((row["run_id"], row["step"], RATIO, "site", _finite(ratio)))
    return pl.DataFrame(rows, schema=PROBE_COLUMNS, orient="row")


def gain_table(runs: pl.DataFrame, derived: pl.DataFrame) -> list[dict]:
    """Gains over the whole depth of the deepest networks, one entry per variant.

    `forward` and `backward`: of all sub-layers together, `max` and `min` as geometric
    means over seeds, and `farthest`, the sum that is farthest from 1 at any sub-layer and
    seed.

    Args:
        derived: `gain_rows`, or probes that hold them.
    """
    done = runs.filter(state="completed").drop_nulls(["n_layers", "seed"])
    columns = ["variant", "n_layers", "run_id"]
    joined = derived.join(done.select(columns), on="run_id")
    table = []
    for variant in done["variant"].unique(maintain_order=True):
        own = joined.filter(
            pl.col("variant") == variant, pl.col("quantity").str.starts_with(f"{GAIN}/")
        )
        if own.is_empty():
            continue
        own = own.filter(pl.col("n_layers") == pl.col("n_layers").max())
        row = {
            "variant": variant,
            "depth": own["n_layers"][0],
            "step": own["step"].max(),
        }
        for direction, place in zip(DIRECTIONS, (-1, 0), strict=True):
            row[direction] = _whole(own, direction, place)
        table.append(row)
    return table


def _whole(own: pl.DataFrame, direction: str, place: int) -> dict:
    def values(name: str) -> list[float]:
        lists = own.filter(quantity=f"{GAIN}/{direction}/{name}")["values"]
        ends = [one[0 if name == FARTHEST else place] for one in lists]
        return [v for v in ends if v is not None and v > 0]

    found = {}
    for measure in ("max", "min"):
        ends = values(measure)
        found[measure] = asdict(geometric_interval(ends)) if ends else None
    far = values(FARTHEST)
    found[FARTHEST] = max(far, key=lambda v: abs(math.log(v))) if far else math.nan
    return found


def with_derived(probes: pl.DataFrame) -> pl.DataFrame:
    """`probes`, and below them the rows that follow from them."""
    return pl.concat(
        [probes.select(*PROBE_COLUMNS), gain_rows(probes), ratio_rows(probes)]
    )


def _finite(values: np.ndarray) -> list[float | None]:
    return [float(v) if np.isfinite(v) else None for v in values]
