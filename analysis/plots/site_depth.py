"""A quantity against the depth at several steps, in the cells of the primary."""

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogFormatter, MaxNLocator

from analysis.interaction.design import joined
from analysis.interaction.study import Study
from analysis.plots import cells, style
from analysis.plots.site_maps import FINAL, with_final

LINES = 5


def site_depth_figure(study: Study, metric: str = "x_rms") -> Figure:
    """Mean over seeds of `site/<metric>` over the sites, a line per step (a handful,
    first and last among them), a panel per cell of the primary hypothesis.

    Raises:
        ValueError: no such cell has it.
    """
    rule = study.rules[0] if study.rules else ""
    p = study.design.primary
    inner = cells.probed(study, rule, f"site/{metric}")
    last = cells.probed(study, rule, f"{FINAL}{metric}")
    found = {}
    for cell in ((r, c) for r in p.rows for c in p.columns):
        if cell in inner:
            steps, values = cells.mean_by_step(inner[cell])
            if cell in last:
                values = with_final(steps, values, last[cell])
            found[cell] = steps, values
    if not found:
        raise ValueError(f"no cell of the primary hypothesis has site/{metric}")
    figure, panels = cells.grid(len(found), 2, 2.9, 2.1, sharex=True, sharey=True)
    chosen = shown_steps(sorted({s for steps, _ in found.values() for s in steps}))
    colours = matplotlib.colormaps["viridis"](np.linspace(0, 0.9, len(chosen)))
    for axes, (cell, (steps, values)) in zip(panels, found.items(), strict=True):
        for step, colour in zip(chosen, colours, strict=True):
            if step in steps:
                line = values[steps.index(step)]
                x = np.arange(1, len(line) + 1)
                axes.plot(x, line, color=colour, lw=1.5, marker=".", ms=4)
        style.tidy(axes, x="", y="")
        cells.panel_title(axes, joined(cell))
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda y, _: f"{y:g}")
        # Numbers between powers of ten only where there are hardly any such powers.
        axes.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(1, 0.4)))
        axes.tick_params(which="both", labelsize=7.5)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    for axes in panels[-min(2, len(panels)) :]:
        axes.tick_params(labelbottom=True)
        axes.set_xlabel("site (1 is next to the input)", fontsize=9, color=style.INK)
    for axes in panels[::2]:
        axes.set_ylabel(metric, fontsize=9, color=style.INK)
    handles = [
        Line2D([], [], color=c, label=f"step {s}")
        for s, c in zip(chosen, colours, strict=True)
    ]
    cells.beside(panels[min(1, len(panels) - 1)], handles=handles)
    cells.head(figure, f"{metric} at the inputs of the norms")
    text = "Mean over seeds"
    text += "; the last site is the final norm" if last else ""
    style.caption(figure, f"{text}; {cells.RULES.get(rule, rule)}.")
    return figure


def shown_steps(steps: list[int]) -> list[int]:
    """At most five, first and last among them, evenly spread over the list."""
    places = np.linspace(0, len(steps) - 1, min(LINES, len(steps))).round().astype(int)
    return [steps[i] for i in dict.fromkeys(places.tolist())]
