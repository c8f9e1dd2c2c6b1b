"""Small curves of a function and its slope, for tables."""

import io

import matplotlib
import numpy as np
from matplotlib.axes import Axes

from analysis.plots import style

VALUE, SLOPE = style.COLOURS[:2]


def curve_svg(t: list[float], panels: list[tuple[str, list, list]], name: str) -> bytes:
    """A row of panels, each with y(t) (solid) and dy/dt (dashed), as SVG.

    Args:
        t: the abscissa.
        panels: (title, y, slope); a None is a gap.
        name: of the function; makes the file the same every time.
    """
    figure = style.new_figure(2.35 * len(panels), 1.7)
    for axes, (title, y, slope) in zip(
        figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True
    ):
        _panel(axes, np.array(t), _array(y), _array(slope), title)
    out = io.BytesIO()
    settings = {"svg.fonttype": "none", "svg.hashsalt": name}
    with matplotlib.rc_context(settings):
        figure.savefig(out, format="svg", facecolor="none", metadata={"Date": None})
    return out.getvalue()


def frame_of(y: np.ndarray, slope: np.ndarray) -> tuple[float, float]:
    """Limits that show all of y and the usual slopes.

    A normalizer that divides by the size of a token is a step of height 2 at the
    origin, a thousand steep: nothing else would be seen beside its slope.
    """
    usual = np.nanquantile(slope, [0.05, 0.95]) if np.isfinite(slope).any() else [0]
    shown = np.concatenate([y[np.isfinite(y)], usual, [0.0, 1.0]])
    low, high = shown.min(), shown.max()
    room = 0.06 * (high - low)
    return low - room, high + room


def _panel(axes: Axes, t, y, slope, title: str) -> None:
    axes.axhline(0, color=style.GRID, linewidth=0.8)
    axes.axvline(0, color=style.GRID, linewidth=0.8)
    axes.plot(t, slope, color=SLOPE, linewidth=1.1, dashes=(4, 2))
    axes.plot(t, y, color=VALUE, linewidth=1.6)
    axes.set_ylim(*frame_of(y, slope))
    axes.set_xlim(t[0], t[-1])
    style.tidy(axes, x="", y="")
    axes.set_title(title, loc="left", fontsize=8, color=style.MUTED, pad=3)
    axes.tick_params(labelsize=7, length=2)


def _array(values: list) -> np.ndarray:
    return np.array([np.nan if v is None else v for v in values], float)
