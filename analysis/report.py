"""Writes DIR/report: one page, its figures, and the numbers as JSON."""

import contextlib
import json
import os
import re
import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl
from matplotlib.figure import Figure

from analysis.depths import DOWN, STREAM, UP
from analysis.errors import AnalysisError
from analysis.gain import GAIN, RATIO, gain_table, with_derived
from analysis.interaction.figures import study_figures
from analysis.interaction.origin import has_design
from analysis.interaction.result import study_of, summarise_study
from analysis.interaction.study import Study
from analysis.load import Runs, load
from analysis.losses import VAL_ACCURACY
from analysis.page import render
from analysis.plots import style
from analysis.plots.accuracy import accuracy_figure
from analysis.plots.depth import depth_figure
from analysis.plots.forest import forest_figure
from analysis.plots.gain import gain_figure
from analysis.plots.growth import growth_figure
from analysis.plots.heatmap import heatmap_figure
from analysis.plots.loss import loss_figure
from analysis.plots.mixing import mixing_figure
from analysis.plots.profile import profile_figure
from analysis.plots.removal import REMOVAL, removal_figure
from analysis.plots.similarity import (
    COSINE,
    SIMILARITY,
    cosine_figure,
    similarity_figure,
)
from analysis.plots.stream import stream_figure
from analysis.provenance import mixed_lines
from analysis.strict import strict
from analysis.summary import summarise
from analysis.variants import is_depth_family

FOLDER = "report"
INTERACTION = "interaction"  # what its figures are of, in place of a family
# Quantities of `task=propagate` with a figure of their own: its title and its axis.
FORWARD = {
    "activation/std": ("Spread of the activations", "standard deviation"),
    "block_influence": ("How far a block turns the stream", "1 - cos(before, after)"),
    "token_cosine": ("How alike tokens are", "mean cosine of two tokens"),
}
# The quantity of `update_size`.
UPDATE = "update_rms"
APART = "a variant that would mix them is shown once for each"


@dataclass(frozen=True)
class Report:
    """What was written: the summary, and where page and figures are."""

    summary: dict
    page: Path
    figures: list[Path]


def write_report(directory: str | Path) -> Report:
    """Writes `report/index.html`, `report/figures/*` and `report/summary.json`.

    Every figure is there as PNG, which the page shows, and as PDF for print.

    All of it appears at once: it is made in a hidden folder beside the old report and
    then takes its place.

    Raises:
        AnalysisError: the folder holds no runs, cannot be written to, or has a
            `report` that is not one.
    """
    table = load(directory)
    table = replace(table, probes=with_derived(table.probes))
    summary = summarise(table)
    summary["mixed"] = [f"{line}; {APART}" for line in mixed_lines(table.runs)]
    for family in summary["families"]:
        own = table.runs.filter(pl.col("family") == family["family"])
        family["gains"] = gain_table(own, table.probes)
    study, summary["interaction"] = _interaction(table)
    home = table.directory
    _refuse_foreign(home / FOLDER)
    try:
        temporary = Path(tempfile.mkdtemp(prefix=".report-", dir=home))
    except OSError as error:
        raise AnalysisError(f"cannot write a report into {home}: {error}") from error
    try:
        temporary.chmod(0o755)  # mkdtemp makes a private folder
        figures = _write_figures(table, study, temporary / "figures")
        summary["figures"] = [f"figures/{path.name}" for _, path in figures]
        text = json.dumps(strict(summary), indent=2, allow_nan=False)
        (temporary / "summary.json").write_text(text + "\n", encoding="utf-8")
        page = render(summary, figures)
        (temporary / "index.html").write_text(page, encoding="utf-8")
        _replace(home / FOLDER, temporary)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    target = home / FOLDER
    return Report(
        summary=summary,
        page=target / "index.html",
        figures=[target / name for name in summary["figures"]],
    )


def figures_of(table: Runs, family: str) -> dict[str, Figure]:
    """Name -> figure, only those that the family has data for."""
    runs = table.runs.filter(pl.col("family") == family)
    metrics = table.metrics.join(runs.select("run_id"), on="run_id", how="semi")
    probes = table.probes.join(runs.select("run_id"), on="run_id", how="semi")
    done = runs.filter(state="completed").select("run_id")
    recorded = set(probes.join(done, on="run_id", how="semi")["quantity"])
    figures = {}
    has_depths = is_depth_family(family) and _has_laws(runs)
    # At one depth there is nothing to see over depths, and the forward pass has profiles.
    if is_depth_family(family) and (has_depths or not recorded & set(FORWARD)):
        for quantity, layer in ((UP, "last"), (DOWN, "last"), (UP, "first")):
            if quantity in recorded:
                name = f"depth_{_short(quantity)}_{layer}"
                figures[name] = depth_figure(runs, probes, quantity, layer)
        if has_depths and recorded & {UP, DOWN}:
            figures["exponents"] = forest_figure(runs, probes)
    elif not (is_depth_family(family) or metrics.drop_nulls("loss").is_empty()):
        figures["loss"] = loss_figure(runs, metrics, "Loss while training")
        if not metrics.drop_nulls(VAL_ACCURACY).is_empty():
            figures["accuracy"] = accuracy_figure(runs, metrics)
    if UP in recorded:
        figures[f"profile_{_short(UP)}"] = profile_figure(runs, probes, UP)
    if STREAM in recorded:
        figures["stream"] = stream_figure(runs, probes)
    if has_depths and UP in recorded:
        figures[f"blocks_{_short(UP)}"] = heatmap_figure(runs, probes, UP)
    for quantity, (head, y) in FORWARD.items():
        if quantity in recorded and is_depth_family(family):
            with contextlib.suppress(
                ValueError
            ):  # not positive: no place on a log axis
                figure = profile_figure(runs, probes, quantity, head, y)
                figures[f"profile_{_short(quantity)}"] = figure
    if UPDATE in recorded and has_depths:
        # "first" and "last" of one number are the same; no theory is drawn at "first".
        head = "Change of the output by one SGD step, per learning rate"
        y = "RMS of the change / learning rate"
        figures[UPDATE] = depth_figure(runs, probes, UPDATE, "first", head, y)
    if has_depths and STREAM in recorded:
        figures["growth"] = growth_figure(runs, probes)
    return figures | _stream_figures(runs, probes, recorded)


def _stream_figures(runs, probes, recorded: set[str]) -> dict[str, Figure]:
    """What sub-layers do to the stream, what a block is for, how streams are mixed."""
    figures = {}
    if RATIO in recorded:
        with contextlib.suppress(ValueError):  # a branch of zeros has no logarithm
            head = "Branches beside the stream they meet"
            y = "RMS of the branch / RMS of the stream"
            figures[RATIO] = profile_figure(runs, probes, RATIO, head, y)
    if REMOVAL in recorded:
        figures["removal"] = removal_figure(runs, probes)
    if COSINE in recorded:
        figures["stream_cosine"] = cosine_figure(runs, probes)
    if SIMILARITY in recorded:
        figures["stream_similarity"] = similarity_figure(runs, probes)
    if f"{GAIN}/forward/max" in recorded:
        figures["composite_gain"] = gain_figure(runs, probes)
        figures["mixing"] = mixing_figure(runs, probes)
    return figures


def _has_laws(runs: pl.DataFrame) -> bool:
    """Whether some variant completed at two depths."""
    done = runs.filter(state="completed").drop_nulls("n_layers")
    depths = done.group_by("variant").agg(pl.col("n_layers").n_unique())
    return bool((depths["n_layers"] > 1).any())


def _interaction(table: Runs) -> tuple[Study | None, dict | None]:
    """The study of a folder with a design; one that is faulty says so on the page."""
    if not has_design(table):
        return None, None
    try:
        study = study_of(table)
    except AnalysisError as error:
        return None, {"error": str(error)}
    return study, summarise_study(study)


def _write_figures(
    table: Runs, study: Study | None, folder: Path
) -> list[tuple[str, Path]]:
    folder.mkdir()
    families = list(table.runs["family"].unique(maintain_order=True))
    written = []
    for name, figure in (study_figures(study) if study else {}).items():
        path = folder / f"{name}.png"
        style.save(figure, path)
        written.append((INTERACTION, path))
    for family in families:
        # One family, the usual case, needs no prefix.
        prefix = "" if len(families) == 1 else re.sub(r"\W+", "_", family) + "_"
        for name, figure in figures_of(table, family).items():
            path = folder / f"{prefix}{name}.png"
            style.save(figure, path)
            written.append((family, path))
    return written


def _short(quantity: str) -> str:
    return quantity.removeprefix("grad_norm/").removesuffix("/kernel").replace("/", "_")


def _refuse_foreign(target: Path) -> None:
    """What stands in the way must be a report, or it is not ours to replace."""
    if target.exists() and not (target / "summary.json").is_file():
        raise AnalysisError(f"{target} is in the way and is not a report; move it")


def _replace(target: Path, new: Path) -> None:
    """Moves `new` to `target`; a folder in its place is kept until that worked."""
    if not target.exists():
        os.replace(new, target)
        return
    old = Path(tempfile.mkdtemp(prefix=".report-old-", dir=target.parent)) / FOLDER
    os.replace(target, old)
    try:
        os.replace(new, target)
    except OSError:
        os.replace(old, target)
        raise
    finally:
        shutil.rmtree(old.parent, ignore_errors=True)
