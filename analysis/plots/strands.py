"""The sub-layers of blocks as lines of their own."""

from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes

from analysis.plots import style

NOTE = (
    " Hollow: the first sub-layer of a block (attention, say); filled: the last. Each has "
    "a line of its own."
)


@dataclass(frozen=True)
class Strand:
    """One sub-layer of every block.

    sites: its entries of an axis over sub-layers. is_last: of those of a block.
    """

    sites: slice
    is_last: bool

    def marks(self, look: style.Look) -> dict:
        """Marker keywords of Matplotlib's `plot`."""
        if self.is_last:
            return {"mec": "white", "mew": 0.5}
        return {"mfc": "white", "mec": look.colour, "mew": 1.0}


WHOLE = Strand(slice(None), is_last=True)


def strands(n_sites: int, n_blocks: int) -> list[Strand]:
    """One strand per sub-layer of a block; a single one if there are no whole blocks.

    Attention and feed-forward differ, and a line through both in turn is a saw.
    """
    n = n_sites // n_blocks if n_sites % n_blocks == 0 else 1
    return [Strand(slice(k, None, n), k == n - 1) for k in range(n)]


def draw_behind(axes: Axes, x: np.ndarray, line: np.ndarray, n_blocks: int) -> None:
    """One of the others, in grey behind what a panel is about."""
    for part in strands(len(line), n_blocks):
        own = part.sites
        axes.plot(x[own], line[own], color=style.GRID, lw=0.8, zorder=0)


def note(n_sites: int, n_blocks: int) -> str:
    """For the caption; empty where blocks have one sub-layer."""
    return NOTE if len(strands(n_sites, n_blocks)) > 1 else ""
