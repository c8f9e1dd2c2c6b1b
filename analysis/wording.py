"""Sentences and cells that the page and the terminal share."""

import math

from analysis.decide import TOO_FEW
from analysis.text import NOTHING, count, minus, with_interval


def states_line(summary: dict) -> str:
    """`48 runs: 45 completed, 3 diverged.`"""
    states = ", ".join(f"{n} {state}" for state, n in summary["states"].items())
    return f"{count(summary['n_runs'], 'run')}: {states}."


def usual_text(family: dict) -> str:
    """What the labels of a family's variants leave out."""
    return f"Where a label does not say otherwise: {family['usual']}."


def verdict_line(outcome: dict) -> str:
    """The verdict with its reason, if it has one: `too few seeds: about 21 needed`."""
    if outcome["reason"]:
        return f"{outcome['verdict']}: {outcome['reason']}"
    if outcome["verdict"] != TOO_FEW:
        return outcome["verdict"]
    needed = outcome["seeds_needed"]
    return f"{TOO_FEW}: about {needed} needed" if needed else TOO_FEW


def measured_text(outcome: dict) -> str:
    """`−0.476 ± 0.008`."""
    return minus(with_interval(outcome["measured"], outcome["half_width"]))


def band_text(outcome: dict) -> str:
    """`−0.475 ± 0.02`: the expected value with its tolerance, as they were given."""
    if not math.isfinite(outcome["expected"]):
        return NOTHING
    return minus(f"{outcome['expected']:g} ± {outcome['tolerance']:g}")


def interval_text(interval: dict) -> str:
    """`2.4031 ± 0.0042`, or the mean and a word where there is one seed only."""
    text = minus(with_interval(interval["mean"], interval["half_width"]))
    return text if interval["n"] > 1 else f"{text} (one seed: no interval)"


def law_text(law: dict) -> str:
    """`power`, or `exponential, 0.3395 ± 0.0012 per block`."""
    if law["kind"] != "exponential":
        return law["kind"]
    return f"exponential, {interval_text(law['rate_per_block'])} per block"


def ratio_text(law: dict) -> str:
    """`1.3 ± 0.3`: s0^2 / v as the gradient alone tells it, where it should."""
    ratio, theory = law["linear"]["ratio"], law["theory"]
    if theory is None or theory["shape"] != "growing":
        return NOTHING
    if not math.isfinite(ratio["mean"]):
        return "does not grow"
    return minus(with_interval(ratio["mean"], ratio["half_width"]))


def profile_text(profile: dict) -> str:
    """`−0.486 ± 0.010`, or the rate per block where that fits better."""
    is_exponential = profile["kind"] == "exponential"
    number = profile["rate"] if is_exponential else profile["exponent"]
    text = minus(with_interval(number["mean"], number["half_width"]))
    return f"{text} per block" if is_exponential else text


def state_text(variant: dict) -> str:
    """`3 completed, 1 diverged`."""
    return ", ".join(f"{n} {state}" for state, n in variant["states"].items())


def incidents(variant: dict, *, with_depth: bool, limit: int = 8) -> list[str]:
    """What happened to runs that diverged or failed, a line each, the first few."""

    def which(run: dict) -> str:
        depth = f", L={run['n_layers']}" if with_depth else ""
        return f"seed {run['seed']}{depth}"

    lines = [
        f"{which(run)} diverged at step {run['diverged_step']}"
        for run in variant["diverged"]
    ]
    lines += [
        f"{which(run)} failed: {run['error'] or 'no error recorded'}"
        for run in variant["failed"]
    ]
    lines += [f"{which(run)}: {run['warning']}" for run in variant.get("warned", ())]
    if len(lines) > limit:
        lines = [*lines[:limit], f"and {len(lines) - limit} more: summary.json"]
    if variant.get("leaks_through"):
        lines.append(
            f"tokens meet in {variant['leaks_through']}: while it trains a token sees "
            "later ones, so its training loss is too good (validation uses running "
            "statistics)"
        )
    return lines
