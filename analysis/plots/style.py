"""What the figures share: colours, markers, captions. No pyplot, so no global state.

A figure is a plain `matplotlib.figure.Figure` on the Agg canvas: nothing has to be
closed. In a notebook, `%matplotlib inline` shows one that a cell returns.
"""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

DPI = 150
# Widths of a figure [inch] in print: one column, and the whole page.
ONE_COLUMN, TWO_COLUMNS = 3.5, 7.2
# From so many variants on, one axes with all of them is a tangle.
MANY = 9
INK, MUTED, GRID = "#222222", "#666666", "#E4E4E4"

# Okabe and Ito's palette with grey for its yellow, which does not show on white.
COLOURS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#000000",
    "#8C8C8C",
)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h")
# An interval over two seeds is t = 12.7 standard errors wide: true, but a band of it
# hides every other curve. It is given as a number and a bar instead.
BAND_SEEDS = 3
DASHES = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)))


@dataclass(frozen=True)
class Look:
    """How one variant is drawn, the same in every figure of a family."""

    colour: str
    marker: str
    dashes: object


def looks(variants: Sequence[str]) -> dict[str, Look]:
    """Colour, marker and dash per variant: told apart without colour too."""
    return {
        variant: Look(
            COLOURS[i % len(COLOURS)],
            MARKERS[i % len(MARKERS)],
            DASHES[i // len(COLOURS) % len(DASHES)],
        )
        for i, variant in enumerate(dict.fromkeys(variants))
    }


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of that many inches with room below for a caption."""
    figure = Figure(figsize=(width, height), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def tidy(axes: Axes, *, x: str, y: str, title: str = "") -> None:
    """Labels with units, a light grid, no box."""
    axes.set_xlabel(x, color=INK, fontsize=10)
    axes.set_ylabel(y, color=INK, fontsize=10)
    if title:
        axes.set_title(title, loc="left", fontsize=11, color=INK, pad=8)
    axes.tick_params(which="both", colors=INK, labelsize=9)
    axes.grid(True, which="major", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(MUTED)


def small_panel(axes: Axes, variant: str) -> None:
    """One of many panels, named by its variant."""
    name = plain(shorten(variant, 24))
    axes.set_title(name, loc="left", fontsize=7.5, color=INK, pad=3)
    axes.tick_params(labelsize=7, colors=INK)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def caption(figure: Figure, text: str) -> None:
    """Writes the caption under the axes, wrapped to the width of the figure."""
    width, height = figure.get_size_inches()
    lines = textwrap.wrap(text, width=int(width * 15))
    room = (0.17 * len(lines) + 0.12) / height
    figure.get_layout_engine().set(rect=(0, room, 1, 1 - room))
    figure.text(
        0.012,
        room - 0.04 / height,
        "\n".join(lines),
        fontsize=8.5,
        color=MUTED,
        va="top",
        linespacing=1.35,
    )


def shorten(text: str, limit: int = 34) -> str:
    """A label that would be wider than what it labels, without its middle.

    Labels of one figure tend to begin alike and to differ at their end.
    """
    if len(text) <= limit:
        return text
    end = limit // 2
    return text[: limit - end - 1] + "\N{HORIZONTAL ELLIPSIS}" + text[-end:]


def plain(text: str) -> str:
    """Text that Matplotlib does not take for mathematics."""
    return text.replace("$", r"\$")


def save(figure: Figure, path: Path) -> None:
    """Writes a PNG at 150 dpi, and beside it the same as PDF: vectors, fonts embedded."""
    figure.savefig(path.with_suffix(".png"), dpi=DPI, facecolor="white")
    # The layout is that of the PNG: finding it again would take as long as drawing.
    figure.set_layout_engine("none")
    # Type 42 keeps text as text; journals refuse type 3. No date: equal figures are
    # equal files.
    with matplotlib.rc_context({"pdf.fonttype": 42}):
        figure.savefig(path.with_suffix(".pdf"), metadata={"CreationDate": None})
