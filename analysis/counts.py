"""The parameters of models as bars: DIR/count.json -> DIR/count.svg."""

from pathlib import Path

from analysis.answers import read_answer, write_whole
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
    figure = parts_figure({home.name: read_counts(home)})
    return write_whole(home / FIGURE, lambda path: figure.savefig(path, format="svg"))


def read_counts(home: Path) -> dict:
    """Contents of count.json.

    Raises:
        AnalysisError: no such file, not JSON, or of another schema.
    """
    return read_answer(home / SOURCE, task="count", schema=SCHEMA)
