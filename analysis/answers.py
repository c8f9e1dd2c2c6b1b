"""What a task that makes no run wrote: a JSON file, to be drawn into one beside it."""

import json
import os
from collections.abc import Callable
from pathlib import Path

from analysis.errors import AnalysisError


def read_answer(path: Path, *, task: str, schema: int) -> dict:
    """Contents of the JSON file of a task.

    Raises:
        AnalysisError: no such file, not JSON, or of another schema.
    """
    try:
        node = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise AnalysisError(
            f"{path}: cannot be read ({error.strerror or error}); "
            f"`python launch.py task={task}` writes {task}.json"
        ) from error
    except ValueError as error:
        raise AnalysisError(f"{path} is not JSON: {error}") from error
    found = node.get("schema") if isinstance(node, dict) else None
    if found != schema:
        raise AnalysisError(f"{path}: expected schema {schema}, got {found!r}")
    return node


def write_whole(path: Path, write: Callable[[Path], object]) -> Path:
    """Writes a file under another name first; returns `path`.

    Raises:
        AnalysisError: it cannot be written.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        write(temporary)
        os.replace(temporary, path)
    except OSError as error:
        raise AnalysisError(f"cannot write {path}: {error}") from error
    return path
