"""Where a design comes from: the tags of the runs, or two axes named afterwards."""

import json
from dataclasses import replace
from pathlib import Path

from analysis.errors import AnalysisError
from analysis.interaction.design import Design, Factor, Level
from analysis.interaction.levels import column_of, order_of, spelled
from analysis.interaction.parse import parse, unregistered
from analysis.load import Runs


def has_design(table: Runs) -> bool:
    """Whether some run was made for a design."""
    name = "config.tags.design"
    return any(c == name or c.startswith(f"{name}.") for c in table.runs.columns)


def registered(table: Runs) -> tuple[Design, list[str], int]:
    """The design of the newest run, a note where older runs carry another, and how many
    runs carry its primary hypothesis.

    Raises:
        AnalysisError: no run has one, or it is faulty.
    """
    found = []
    for path, updated in table.runs.select("path", "updated").rows():
        try:
            config = json.loads((Path(path) / "config.json").read_text("utf-8"))
        except (OSError, ValueError):
            continue  # named among the problems of the folder
        tags = config.get("tags") if isinstance(config, dict) else None
        node = tags.get("design") if isinstance(tags, dict) else None
        if node:
            found.append((updated or 0.0, len(found), node))
    if not found:
        raise AnalysisError(
            f"{table.directory} holds no design; give --rows and --columns, or write "
            "tags.design into the experiment (docs/interaction.md)"
        )
    newest = max(found)[2]
    try:
        design = parse(newest)
    except ValueError as error:
        raise AnalysisError(f"tags.design: {error}") from error
    nodes = [node for _, _, node in found]
    same = [n for n in nodes if _primary_of(n) == _primary_of(newest)]
    return design, _notes(newest, nodes), len(same)


def _primary_of(node) -> object:
    return node.get("primary") if isinstance(node, dict) else node


def _notes(newest: dict, nodes: list) -> list[str]:
    others = [node for node in nodes if node != newest]
    if not others:
        return []
    changed = [n for n in others if _primary_of(n) != _primary_of(newest)]
    text = f"{len(others)} of {len(nodes)} runs carry another version of the design"
    if changed:
        text += f"; {len(changed)} of them another primary hypothesis"
    return [f"{text}. Shown is that of the newest run."]


def from_axes(table: Runs, rows: str, columns: str, **keywords) -> Design:
    """A design after the fact; an axis is `norm` or `norm=rmsnorm,derf`.

    Without levels they are those found, in alphabetical order; the first level is
    the baseline.

    Raises:
        AnalysisError: an axis that no run has, or with one level only.
    """
    try:
        design = unregistered(_axis(table, rows), _axis(table, columns))
        return replace(design, **keywords)
    except ValueError as error:
        raise AnalysisError(str(error)) from error


def _axis(table: Runs, text: str) -> Factor:
    key, _, listed = text.partition("=")
    name = column_of(table.runs, key)
    found = [spelled(value) for value in table.runs[name].drop_nulls().unique()]
    wanted = [part.strip() for part in listed.split(",") if part.strip()]
    missing = [level for level in wanted if level not in found]
    if missing:
        raise ValueError(f"no run has {key}={missing[0]}; {', '.join(sorted(found))}")
    labels = wanted or sorted(found, key=order_of)
    return Factor(key, tuple(Level(label, {key: label}) for label in labels))
