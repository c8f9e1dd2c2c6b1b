"""What of a logarithmic axis is shown where one variant explodes."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import polars as pl
from matplotlib.axes import Axes

from analysis.plots import style

# A variant is left out of an axis if it lies this many times as far off, in logarithms,
# as the nearer half of the variants, and by a factor beyond what anybody reads
# differences in.
TIMES, FACTOR = 3.0, 1e4
MARGIN = 0.08  # of the axis, above and below


@dataclass(frozen=True)
class Window:
    """Limits of an axis, and the variants beyond them with their farthest value."""

    low: float
    high: float
    beyond: dict[str, float] = field(default_factory=dict)

    @property
    def is_cut(self) -> bool:
        return bool(self.beyond)

    @property
    def limits(self) -> tuple[float, float]:
        """With a margin, for an axis."""
        room = (self.high / self.low) ** MARGIN
        return self.low / room, self.high * room

    @property
    def extend(self) -> str:
        """Ends at which a colour bar goes on, as Matplotlib names them."""
        above = any(value > self.high for value in self.beyond.values())
        below = any(value < self.low for value in self.beyond.values())
        return {(1, 1): "both", (1, 0): "max", (0, 1): "min"}.get(
            (above, below), "neither"
        )

    def note(self, where: str) -> str:
        """A sentence for the caption; empty where nothing is left out."""
        if not self.beyond:
            return ""
        told = "; ".join(f"{name} ({x:.0e})" for name, x in self.beyond.items())
        return f" Beyond the {where}, with the farthest value: {told}."


def window_of(values: Mapping[str, Iterable[float]]) -> Window:
    """The range of all variants but those that would hide the differences of the rest.

    A variant reaches as far as its farthest value is from the median of the variants'
    medians, in logarithms. Left out are those that reach beyond FACTOR and more than
    TIMES as far as the nearer half of them. (Not as far as the next one: variants that
    explode at different rates would keep each other in.)

    Args:
        values: positive numbers of each variant; others are passed over.

    Raises:
        ValueError: no variant has any.
    """
    logs = {}
    for name, of in values.items():
        found = np.asarray(list(of), float)
        found = found[np.isfinite(found) & (found > 0)]
        if found.size:
            logs[name] = np.log(found)
    if not logs:
        raise ValueError("no positive value to draw")
    centre = float(np.median([np.median(of) for of in logs.values()]))
    farthest = {
        name: float(of[np.argmax(np.abs(of - centre))]) for name, of in logs.items()
    }
    reach = {name: abs(farthest[name] - centre) for name in logs}
    order = sorted(logs, key=reach.__getitem__)
    usual = reach[order[math.ceil(len(order) / 2) - 1]]
    limit = max(TIMES * usual, math.log(FACTOR))
    kept = [name for name in order if reach[name] <= limit]
    inside = np.concatenate([logs[name] for name in kept])
    return Window(
        math.exp(inside.min()),
        math.exp(inside.max()),
        {name: math.exp(min(farthest[name], 700.0)) for name in order[len(kept) :]},
    )


def cut_axis(
    axes: Axes, values: pl.DataFrame, window: Window, looks: Mapping[str, style.Look]
) -> None:
    """Ends the y axis at the window; an arrow stands at each depth beyond it.

    values: columns variant, n_layers, value.
    """
    if not window.is_cut:
        return
    low, high = window.limits
    axes.set_ylim(low, high)
    for variant in window.beyond:
        look = looks[variant]
        for (depth,), rows in values.filter(variant=variant).group_by("n_layers"):
            middle = rows["value"].median()
            if middle is None or low <= middle <= high:
                continue
            is_above = middle > high
            axes.plot(
                depth,
                high if is_above else low,
                "^" if is_above else "v",
                ms=6,
                color=look.colour,
                clip_on=False,
                zorder=5,
            )


def say_beyond(axes: Axes, value: float) -> None:
    """Writes into a panel that its variant lies beyond what the panels show."""
    axes.text(
        0.5,
        0.5,
        f"beyond the scale:\nto {value:.0e}",
        transform=axes.transAxes,
        ha="center",
        va="center",
        fontsize=7,
        color=style.INK,
        bbox={"color": "white", "alpha": 0.8, "pad": 2},
    )
