"""Spectral norms of the matrices while training, relative to the first probe."""

import numpy as np
import polars as pl
from matplotlib.figure import Figure

from analysis.interaction.study import Study
from analysis.plots import cells, style

PREFIX = "sigma1/"
LATE = 0.1  # the exponent is fitted from this share of the last step on


def spectra_figure(study: Study, row: str) -> Figure:
    """sigma1 / sigma1(first probe) against the step for one row of the design: median
    over layers and seeds with the whole range, a panel per matrix, a line per column,
    and the exponent of the median's late growth.

    Raises:
        ValueError: no run of the row recorded spectral norms at two steps.
    """
    rule = study.rules[0] if study.rules else ""
    names = study.table.probes["quantity"].unique().to_list()
    names = sorted(n for n in names if n.startswith(PREFIX))
    drawn = {}
    for name in names:
        found = cells.probed(study, rule, name)
        growths = {cell[1]: _growth(r) for cell, r in found.items() if cell[0] == row}
        growths = {c: g for c, g in growths.items() if g is not None}
        if growths:
            drawn[name] = growths
    if not drawn:
        raise ValueError(f"no run of {row} recorded spectral norms at two steps")
    looks = cells.column_looks(study)
    figure, panels = cells.grid(len(drawn), 4, 2.0, 1.9, sharex=True, sharey=True)
    for axes, (name, growths) in zip(panels, drawn.items(), strict=True):
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.axhline(1, color=style.GRID, lw=0.8, zorder=0)
        lines = []
        for column, (steps, middle, low, high) in growths.items():
            look = looks[column]
            axes.plot(steps, middle, color=look.colour, ls=look.dashes, lw=1.5)
            axes.fill_between(steps, low, high, color=look.colour, alpha=0.15, lw=0)
            lines.append((exponent(steps, middle), look.colour))
        for place, (p, colour) in enumerate(lines):
            if np.isfinite(p):
                axes.text(
                    0.04,
                    0.95 - 0.12 * place,
                    f"$p = {p:.2f}$",
                    transform=axes.transAxes,
                    fontsize=7.5,
                    color=colour,
                    va="top",
                )
        cells.panel_title(axes, name.removeprefix(PREFIX))
        axes.tick_params(which="both", labelsize=7)
        axes.grid(True, which="major", color=style.GRID, lw=0.6)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    for axes in panels[-min(4, len(panels)) :]:
        axes.tick_params(labelbottom=True)
        axes.set_xlabel("step", fontsize=8, color=style.INK)
    for axes in panels[::4]:
        axes.set_ylabel(r"$\sigma_1 / \sigma_1(0)$", fontsize=8.5, color=style.INK)
    columns = dict.fromkeys(c for growths in drawn.values() for c in growths)
    handles = [
        panels[0].plot([], [], color=looks[c].colour, ls=looks[c].dashes)[0]
        for c in columns
    ]
    figure.legend(
        handles,
        [style.plain(c) for c in columns],
        loc="outside upper right",
        ncols=len(columns),
        frameon=False,
        fontsize=8.5,
    )
    cells.head(figure, f"Spectral norms, {style.plain(row)}")
    style.caption(
        figure,
        "Median over layers and seeds; band: the whole range. σ₁(0): at the first "
        "probe, before any update. p: exponent of the step in the growth of the median "
        f"from {100 * LATE:g} % of the last step on. "
        f"{cells.RULES.get(rule, rule).capitalize()}.",
    )
    return figure


def exponent(steps: np.ndarray, middle: np.ndarray) -> float:
    """Slope of ln(median) on ln(step) over the late steps; NaN for fewer than two."""
    late = steps >= LATE * steps[-1]
    if late.sum() < 2:
        return float("nan")
    return float(np.polyfit(np.log(steps[late]), np.log(middle[late]), 1)[0])


def _growth(rows: pl.DataFrame):
    """Steps after the first, and median, least and largest ratio; None without two."""
    start, steps, ratios = {}, [], []
    for (step,), own in rows.group_by("step", maintain_order=True):
        values = {s: np.array(v, float) for s, v in own.select("seed", "values").rows()}
        if not start:
            start = values
            continue
        of = [
            values[s] / start[s]
            for s in values
            if s in start and len(values[s]) == len(start[s])
        ]
        flat = np.concatenate(of) if of else np.array([])
        flat = flat[np.isfinite(flat) & (flat > 0)]
        if flat.size:
            steps.append(step)
            ratios.append((np.median(flat), flat.min(), flat.max()))
    if not steps:
        return None
    return np.array(steps, float), *np.array(ratios).T
