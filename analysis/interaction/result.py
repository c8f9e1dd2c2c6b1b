"""A study as plain numbers and text: the `interaction` entry of summary.json."""

from dataclasses import asdict

from analysis.interaction import matched
from analysis.interaction.design import AS_RUN, Contrast, Design
from analysis.interaction.estimates import (
    Estimate,
    Primary,
    estimate,
    numbers_for,
    primary,
    recovery,
)
from analysis.interaction.mixed import mixed_model
from analysis.interaction.origin import from_axes, registered
from analysis.interaction.study import Study, sort_runs
from analysis.interaction.verdict import outcome
from analysis.load import Runs
from analysis.paired import holm
from analysis.stats import t_interval


def study_of(
    table: Runs, rows: str = "", columns: str = "", tune_seeds: tuple[int, ...] = ()
) -> Study:
    """The study of a folder: of two axes where they are given, else as registered.

    Raises:
        AnalysisError: no design, or runs that do not fit it.
    """
    if rows or columns:
        design = from_axes(table, rows, columns, tune_seeds=tune_seeds)
        return sort_runs(table, design)
    return sort_runs(table, *registered(table))


def summarise_study(study: Study) -> dict:
    """All results under every learning-rate rule that has runs."""
    design = study.design
    curves = matched.curves(study.table.metrics, design.metric)
    rules = {}
    for rule in study.rules:
        values = study.values(rule)
        main = primary(study, rule, curves)
        contrasts = [estimate(c, values) for c in design.contrasts]
        adjusted = holm({e.contrast.id: e.p_t for e in contrasts})
        rules[rule] = {
            "cells": _cells(study, rule),
            "primary": _primary(main),
            "contrasts": [
                _estimate(e) | {"p_holm": adjusted[e.contrast.id]} for e in contrasts
            ],
            "remedies": [asdict(recovery(r, design, values)) for r in design.remedies],
            "mixed_model": mixed_model({c: values.get(c, {}) for c in study.cells}),
        }
        for remedy in rules[rule]["remedies"]:
            remedy["gap"] = _plain(remedy["gap"])
    return {
        "design": _design(design),
        "notes": study.notes,
        "registered_in": [study.registered_in, study.table.runs.height],
        "rules": rules,
        "predictions": [_prediction(study, p) for p in design.predictions],
        "tuning": _tuning(study),
        "left_out": study.left_out,
    }


def rule_of(study: Study, contrast: Contrast) -> str | None:
    """The rule a contrast asks for, else that of the primary; None without runs."""
    wanted = contrast.rates
    if wanted is None:
        return study.rules[0] if study.rules else None
    if study.rules == (AS_RUN,):
        return None  # nobody said by what rule these rates were chosen
    return wanted if wanted in study.rules else None


def _design(design: Design) -> dict:
    return {
        "rows": {"name": design.rows.name, "levels": list(design.rows.labels)},
        "columns": {"name": design.columns.name, "levels": list(design.columns.labels)},
        "wanted": {
            "rows": [level.wanted for level in design.rows.levels],
            "columns": [level.wanted for level in design.columns.levels],
        },
        "metric": design.metric,
        "rate": design.rate,
        "tune_seeds": list(design.tune_seeds),
        "primary": asdict(design.primary),
        "claim": design.claim,
        "is_registered": design.is_registered,
    }


def _cells(study: Study, rule: str) -> list[dict]:
    found = study.values(rule)
    rows = []
    for cell in study.cells:
        values = found.get(cell, {})
        if values:
            row = {"row": cell[0], "column": cell[1], "per_seed": dict(values)}
            rows.append(row | asdict(t_interval(list(values.values()))))
    return rows


def _estimate(found: Estimate) -> dict:
    return _plain(asdict(found))


def _plain(node: dict) -> dict:
    """`contrast` stays nested; the interval's fields move up beside it."""
    return {k: v for k, v in node.items() if k != "interval"} | node["interval"]


def _primary(main: Primary) -> dict:
    return {
        "estimate": _estimate(main.estimate),
        "gaps": [_estimate(g) for g in main.gaps],
        "matched": _estimate(main.matched)
        | {"matches": {seed: asdict(m) for seed, m in main.matches.items()}},
        "log_steps": _estimate(main.log_steps) | {"reason": main.log_steps_reason},
        "gap_ratio": asdict(main.gap_ratio),
        "verdict": main.verdict,
        "sentence": main.sentence,
    }


def _prediction(study: Study, prediction: Contrast) -> dict:
    rule = rule_of(study, prediction)
    numbers = numbers_for(study, prediction)
    values = study.values(rule, numbers) if rule else {}
    found = estimate(prediction, values)
    status, reason = outcome(prediction, found)
    if rule is None:
        rates = f" under {prediction.rates} rates" if prediction.rates else ""
        reason = f"no measuring run{rates}"
    elif not numbers:
        reason = f"no run recorded {prediction.quantity}"
    return _estimate(found) | {"rule": rule, "verdict": status, "reason": reason}


def _tuning(study: Study) -> dict | None:
    if study.tuning is None:
        return None
    tuning = study.tuning
    return {
        "seeds": list(tuning.seeds),
        "points": [
            asdict(p)
            | {
                "is_own": tuning.own.get((p.row, p.column)) == p.rate,
                "is_shared": tuning.shared.get(p.column) == p.rate,
            }
            for p in tuning.points
        ],
        "at_edge": [list(cell) for cell in tuning.at_edge],
        "shared": tuning.shared,
    }
