"""`python -m analysis interaction DIR`: a study on the terminal or as JSON."""

import argparse
import json
from dataclasses import replace
from pathlib import Path

import polars as pl
from rich.console import Console

from analysis.errors import AnalysisError
from analysis.interaction.figures import study_figures
from analysis.interaction.levels import column_of, same
from analysis.interaction.result import study_of, summarise_study
from analysis.load import Runs, load
from analysis.plots import style
from analysis.strict import strict
from analysis.terminal import show_interaction


def run(options: argparse.Namespace) -> None:
    """Prints the study; writes its figures where a folder for them is named.

    Raises:
        AnalysisError: nothing to read, or an option that names nothing.
    """
    table = load(options.directory)
    for condition in options.keep:
        table = kept(table, condition)
    study = study_of(table, options.rows, options.columns, _seeds(options.tune_seeds))
    result = summarise_study(study)
    if options.json:
        print(json.dumps(strict(result), indent=2, allow_nan=False))
    else:
        show_interaction(result, Console())
    if options.figures:
        folder = Path(options.figures)
        folder.mkdir(parents=True, exist_ok=True)
        for name, figure in study_figures(study).items():
            style.save(figure, folder / f"{name}.png")


def kept(table: Runs, condition: str) -> Runs:
    """The runs that meet `key=value`.

    Raises:
        AnalysisError: no run has the key, or none the value.
    """
    key, equals, value = condition.partition("=")
    if not equals:
        raise AnalysisError(f"--keep takes KEY=VALUE, got {condition!r}")
    try:
        found = table.runs[column_of(table.runs, key)].to_list()
    except ValueError as error:
        raise AnalysisError(str(error)) from error
    keep = pl.Series([same(v, value) for v in found], dtype=pl.Boolean)
    if not keep.any():
        raise AnalysisError(f"no run has {condition}")
    return replace(table, runs=table.runs.filter(keep))


def _seeds(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError as error:
        raise AnalysisError(
            f"--tune-seeds takes whole numbers, got {text!r}"
        ) from error
