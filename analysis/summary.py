"""Everything a report says, as plain numbers and text: what summary.json holds."""

import math
from dataclasses import asdict

import polars as pl

from analysis.decide import CONFIRMED
from analysis.depths import (
    DOWN,
    UP,
    DepthSample,
    depth_sample,
    probe_values,
    profile_lists,
)
from analysis.laws.linear import linear_law
from analysis.laws.power import power_law
from analysis.laws.profile import profile_law
from analysis.load import Runs
from analysis.losses import (
    VAL_ACCURACY,
    VAL_LOSS,
    best_first,
    first_measured,
    loss_unit,
)
from analysis.states import state_counts
from analysis.stats import Interval, paired_difference, t_interval
from analysis.theory import Theory, theory_for
from analysis.variants import is_depth_family
from analysis.verdicts import evaluate

# quantity, layer, short name; all in summary.json, the page shows the last blocks.
LAWS = ((UP, "last", "W1 last"), (DOWN, "last", "W2 last"), (UP, "first", "W1 first"))
FROM_BLOCK = 2  # of a profile
# What two runs must have in common for the difference of their losses to mean something.
PAIR = ("seed", "data_fingerprint", "code_version")
BITS = 1 / math.log(2)


def summarise(table: Runs) -> dict:
    """The content of a report: runs, families with losses or laws, expectations.

    Numbers that do not exist are NaN here and null in the file.
    """
    runs = table.runs
    families = list(runs["family"].unique(maintain_order=True))
    return {
        "title": table.directory.resolve().name,
        "question": _question(runs),
        "n_runs": runs.height,
        "states": state_counts(runs),
        "problems": [
            {"run_id": run_id, "problem": problem}
            for run_id, problem in runs.select("run_id", "problems").rows()
            if problem
        ],
        "families": [_family(family, table) for family in families],
        "expected": [asdict(outcome) for outcome in evaluate(table)],
    }


def is_clean(summary: dict) -> bool:
    """Every run completed and every expectation was confirmed (`--strict`)."""
    return set(summary["states"]) == {"completed"} and all(
        outcome["verdict"] == CONFIRMED for outcome in summary["expected"]
    )


def _question(runs: pl.DataFrame) -> str | None:
    if "config.tags.question" not in runs.columns:
        return None
    found = runs["config.tags.question"].drop_nulls()
    return str(found[0]).strip() if len(found) else None


def _family(family: str, table: Runs) -> dict:
    runs = table.runs.filter(pl.col("family") == family)
    variants = list(runs["variant"].unique(maintain_order=True))
    is_depth = is_depth_family(family)
    return {
        "family": family,
        "usual": runs["usual"][0],
        "variants": [_variant(v, runs.filter(variant=v)) for v in variants],
        "losses": []
        if is_depth
        else _ends(runs, table.metrics, variants, (VAL_LOSS, "loss")),
        "accuracies": []
        if is_depth
        else _ends(runs, table.metrics, variants, (VAL_ACCURACY,)),
        "loss_unit": loss_unit(runs),
        "laws": _laws(runs, table.probes, variants) if is_depth else [],
        "profiles": _profiles(runs, table.probes, variants) if is_depth else [],
    }


def _variant(variant: str, runs: pl.DataFrame) -> dict:
    def listed(state: str, *columns: str) -> list[dict]:
        return runs.filter(state=state).select("run_id", "seed", *columns).to_dicts()

    return {
        "variant": variant,
        "n_runs": runs.height,
        "n_seeds": runs["seed"].drop_nulls().n_unique(),
        "states": state_counts(runs),
        "diverged": listed("diverged", "n_layers", "diverged_step"),
        "failed": listed("failed", "n_layers", "error"),
        "warned": runs.drop_nulls("warning")
        .select("run_id", "seed", "n_layers", "warning")
        .to_dicts(),
        "leaks_through": _leak(runs),
    }


def _leak(runs: pl.DataFrame) -> str | None:
    """The parts in which tokens meet outside attention, as in a norm over the batch.

    Only of models that predict tokens: elsewhere nothing is given away.
    """
    if "mixes_tokens" not in runs.columns:
        return None
    found = runs.drop_nulls("data_unit")["mixes_tokens"].drop_nulls()
    return str(found[0]) if len(found) else None


def _ends(runs: pl.DataFrame, metrics: pl.DataFrame, variants, measures) -> list[dict]:
    """One row per variant that ended, best first, with the paired distance to it.

    By the first of `measures` that any run has; no rows if there is none.
    """
    measure, losses = first_measured(runs, metrics, measures)
    origins = runs.select("run_id", "data_fingerprint", "code_version")
    losses = losses.join(origins, on="run_id", maintain_order="left")
    by_variant = {}
    for variant in variants:
        own = losses.filter(variant=variant)
        if not own.is_empty():
            by_variant[variant] = {
                (seed, data or "", code or ""): value
                for seed, data, code, value in own.select(*PAIR, "value").rows()
            }
    means = {v: t_interval(list(seeds.values())) for v, seeds in by_variant.items()}
    order = best_first({v: mean.mean for v, mean in means.items()}, measure)
    rows = []
    for variant in order:
        own = runs.filter(variant=variant)
        is_bytes = set(own["data_unit"].drop_nulls()) == {"byte"}
        is_bytes = is_bytes and measure != VAL_ACCURACY
        best, seeds = by_variant[order[0]], by_variant[variant]
        is_paired = variant != order[0] and bool(best.keys() & seeds.keys())
        rows.append(
            {
                "variant": variant,
                "measure": measure,
                **_interval(means[variant]),
                "bits_per_byte": means[variant].mean * BITS if is_bytes else math.nan,
                "step": losses.filter(variant=variant)["step"].max(),
                "to_best": _interval(paired_difference(best, seeds))
                if is_paired
                else None,
            }
        )
    return rows


def _laws(runs: pl.DataFrame, probes: pl.DataFrame, variants: list[str]) -> list[dict]:
    rows = []
    for quantity, layer, name in LAWS:
        values = probe_values(runs, probes, quantity, layer)
        for variant in variants:
            own = values.filter(variant=variant)
            if own.is_empty():
                continue
            sample = depth_sample(own)
            head = {
                "variant": variant,
                "quantity": quantity,
                "layer": layer,
                "name": name,
                "depths": list(sample.depths),
                "left_out": list(sample.left_out),
            }
            rows.append(head | _law(sample, runs, probes, variant, layer))
    return rows


def _law(sample: DepthSample, runs, probes, variant: str, layer: str) -> dict:
    if len(sample.depths) < 2:
        return {"error": "one depth only: no law" if sample.depths else "no values"}
    if not sample.by_seed:
        return {"error": "no seed reached every depth"}
    law = power_law(sample.depths, sample.by_seed)
    theory = theory_for(runs, probes, variant, law) if layer == "last" else None
    s0_square = theory.s0_square if theory and theory.s0_square > 0 else 1.0
    linear = linear_law(sample.depths, sample.by_seed, s0_square=s0_square)
    is_growing = theory is not None and theory.shape == "growing"
    return {
        "error": None,
        "exponent": _interval(law.exponent),
        "kind": law.kind,
        "amplitude": law.amplitude,
        "geometric_means": list(law.geometric_means),
        "theil_sen": law.theil_sen,
        "max_residual_power": law.max_residual_power,
        "max_residual_exponential": law.max_residual_exponential,
        "rate_per_block": _interval(law.rate),
        "theory": _theory(theory) if theory else None,
        "linear": asdict(linear)
        | {
            # Of g = C / sqrt(s0^2 + v L) only: elsewhere the two have no reason to meet.
            "agrees_with_measured": linear.agrees_with(theory.s0_square, theory.v)
            if is_growing and linear.ratio.has_interval
            else None
        },
    }


def _theory(theory: Theory) -> dict:
    names = ("shape", "exponent", "asymptote", "s0_square", "v", "reason")
    return {name: getattr(theory, name) for name in names}


def _profiles(runs: pl.DataFrame, probes: pl.DataFrame, variants: list[str]) -> list:
    """The gradient over the blocks of the deepest networks of each variant."""
    rows = []
    for variant in variants:
        own = runs.filter(variant=variant, state="completed")
        depth = own["n_layers"].max()
        lists = profile_lists(own, probes, UP, depth) if depth else {}
        # Block 1 is left out: no power of l describes 1 / sqrt(s0^2 + v l) there.
        if not lists or depth <= FROM_BLOCK:
            continue
        law = profile_law(lists, from_block=FROM_BLOCK)
        rows.append({"variant": variant, "quantity": UP, "depth": depth} | asdict(law))
    return rows


def _interval(interval: Interval) -> dict:
    return asdict(interval)
