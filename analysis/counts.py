"""The parameters of models as bars: DIR/count.json -> DIR/count.svg."""

import json
import os
from pathlib import Path

from analysis.errors import AnalysisError
from analysis.plots.parts import parts_figure

SOURCE, FIGURE = "count.json", "count.svg"
SCHEMA = 1


def write_counts(directory: str | Path) -> Path:
    """Draws what task=count wrote into a folder; returns where the figure is.

    Raises:
        AnalysisError: there is no count in the folder, it cannot be read, or the figure
            cannot be written.
    """
    home = Path(directory)
    path, temporary = home / FIGURE, home / f".{FIGURE}.tmp"
    figure = parts_figure({home.name: read_counts(home)})
    try:
        figure.savefig(temporary, format="svg")
        os.replace(temporary, path)
    except OSError as error:
        raise AnalysisError(f"cannot write {path}: {error}") from error
    return path


def read_counts(home: Path) -> dict:
    """Contents of count.json.

    Raises:
        AnalysisError: no such file, not JSON, or of another schema.
    """
    path = home / SOURCE
    try:
        node = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        reason = error.strerror or str(error)
        raise AnalysisError(
            f"{path}: expected what task=count writes, {reason}"
        ) from error
    except ValueError as error:
        raise AnalysisError(f"{path}: not a JSON file ({error})") from error
    schema = node.get("schema") if isinstance(node, dict) else None
    if schema != SCHEMA:
        raise AnalysisError(f"{path}: expected schema {SCHEMA}, got {schema}")
    return node
