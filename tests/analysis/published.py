"""Networks measured outside the project, as the frames that `analysis.load` makes."""

import csv
import json
from collections import defaultdict
from pathlib import Path

import polars as pl

from analysis.frames import PROBE_COLUMNS
from analysis.load import Runs

GOLDEN = Path(__file__).parents[1] / "golden"
DEPTHS = (6, 12, 24, 48, 96, 192, 384)
UP, DOWN = "grad_norm/ffn/up/kernel", "grad_norm/ffn/down/kernel"


def read_csv(name: str) -> list[dict]:
    with (GOLDEN / name).open() as file:
        return list(csv.DictReader(line for line in file if line[0] != "#"))


def published_checks() -> list[dict]:
    return read_csv("depth_laws_checks.csv")


def published_table(entries: list[dict]) -> Runs:
    """All published networks, one run each; `entries` are the expectations."""
    tags = json.dumps(entries)
    runs, probes = [], []
    for number, row in enumerate(read_csv("depth_laws_variants.csv")):
        runs.append(
            {
                "run_id": f"r{number:05}",
                "family": f"depth/{row['model']}",
                "variant": f"{row['model']} {row['case']}",
                "state": "completed",
                "seed": int(row["seed"]),
                "n_layers": int(row["L"]),
                "choice.case": row["case"],
                "config.model.kind": row["model"],
                "config.tags.expected": tags,
            }
        )
        blank = None
        first, last = row["w1_first"] or blank, row["w1"] or blank
        for quantity, values in (
            (UP, [first, last]),
            (DOWN, [blank, row["w2"] or blank]),
            ("grad_norm/attn/q/kernel", [row["q_first"] or blank, blank]),
            ("grad_norm/total", [row["total"] or blank]),
            ("stream_mean_square", [blank, row["square"] or blank]),
        ):
            numbers = [None if value is None else float(value) for value in values]
            probes.append((f"r{number:05}", 0, quantity, "layer", numbers))
    return Runs(
        directory=Path("published"),
        runs=pl.DataFrame(runs),
        metrics=pl.DataFrame(schema={"run_id": pl.String, "step": pl.Int64}),
        probes=pl.DataFrame(probes, schema=PROBE_COLUMNS, orient="row"),
    )


def published_profiles() -> dict[str, list[tuple[float, float]]]:
    """case -> (w1, rms of the stream after it) of block 1..24."""
    found = defaultdict(list)
    for row in read_csv("depth_laws_profiles.csv"):
        found[row["case"]].append((float(row["w1"]), float(row["rms"])))
    return found


def published_seeds(case: str, column: str) -> dict[int, list[float]]:
    """seed -> values over DEPTHS, of the MLP stacks."""
    table = {
        (int(r["seed"]), int(r["L"])): float(r[column])
        for r in read_csv("depth_laws_variants.csv")
        if r["case"] == case and r["model"] == "mlp"
    }
    seeds = sorted({seed for seed, _ in table})
    return {seed: [table[seed, depth] for depth in DEPTHS] for seed in seeds}
