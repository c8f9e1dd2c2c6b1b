"""Which sub-folders of a folder are runs."""

from pathlib import Path

from analysis.errors import AnalysisError
from analysis.read_run import is_run


def run_folders(directory: Path) -> list[Path]:
    """The runs of a folder `outputs/<name>`, sorted by name; others are ignored.

    Raises:
        AnalysisError: the folder does not exist, is a run itself or holds none.
    """
    require_folder(directory)
    folders = runs_in(directory)
    if not folders:
        raise AnalysisError(f"{directory} holds no runs{_hint(directory)}")
    return folders


def require_folder(directory: Path) -> None:
    """Refuses what cannot be a folder of runs; an empty one can.

    Raises:
        AnalysisError: it does not exist, is a file or a run.
    """
    if not directory.is_dir():
        kind = "is not a folder" if directory.exists() else "does not exist"
        raise AnalysisError(
            f"{directory} {kind}; expected a folder of runs, outputs/<name>"
        )
    if is_run(directory):
        raise AnalysisError(
            f"{directory} is one run; give the folder that holds it, {directory.parent}"
        )


def runs_in(directory: Path) -> list[Path]:
    """The runs of a folder, sorted by name; perhaps none."""
    return sorted(
        child
        for child in directory.iterdir()
        if not child.name.startswith(".") and is_run(child)
    )


def _hint(directory: Path) -> str:
    """Runs lie one level deeper when `outputs` is given instead of `outputs/<name>`."""
    for child in sorted(directory.iterdir()):
        if child.is_dir() and any(is_run(grandchild) for grandchild in child.iterdir()):
            return f"; did you mean {child}?"
    return "; expected <run_id>/config.json and the other files of a run"
