"""A quantity of every site while training, one panel per cell."""

import numpy as np
from matplotlib.figure import Figure

from analysis.interaction.design import joined
from analysis.interaction.study import Study
from analysis.plots import cells, style

FINAL = "final/"
NAMES = {
    "sat99": "share of saturated outputs, |f| > 0.99",
    "gain_eff": "mean slope over the slope at 0",
    "lin_cos": "cosine to the linear map",
}
MAX_PANELS = 12


def site_map_figure(study: Study, metric: str) -> Figure:
    """Mean over seeds of `site/<metric>`: sites from the input (top) to the output,
    the last norm below them, over the probed steps.

    Raises:
        ValueError: no cell has it.
    """
    rule = study.rules[0] if study.rules else ""
    inner = cells.probed(study, rule, f"site/{metric}")
    last = cells.probed(study, rule, f"{FINAL}{metric}")
    maps = {}
    for cell, rows in inner.items():
        steps, values = cells.mean_by_step(rows)
        if cell in last:
            values = with_final(steps, values, last[cell])
        if np.isfinite(values).any():
            maps[cell] = steps, values
    if not maps:
        raise ValueError(f"no cell has site/{metric}")
    shown = _first(study, maps)
    low = min(0.0, *(np.nanmin(v) for _, v in maps.values()))
    figure, panels = cells.grid(
        len(shown), min(4, _per_row(shown)), 1.9, 1.75, sharex=False, sharey=True
    )
    for axes, cell in zip(panels, shown, strict=True):
        steps, values = maps[cell]
        image = axes.imshow(
            values.T,
            aspect="auto",
            vmin=low,
            vmax=1,
            cmap="viridis",
            interpolation="nearest",
        )
        cells.panel_title(axes, joined(cell))
        every = max(1, int(np.ceil(len(steps) / 5)))
        axes.set_xticks(range(0, len(steps), every), steps[::every], fontsize=7)
        n_sites = values.shape[1]
        axes.set_yticks([0, n_sites - 1], ["1", str(n_sites)], fontsize=7)
        axes.set_xlabel("step", fontsize=8, color=style.INK)
    for axes in panels[:: min(4, _per_row(shown))]:
        axes.set_ylabel("site", fontsize=8, color=style.INK)
    bar = figure.colorbar(image, ax=figure.axes, shrink=0.9, pad=0.02)
    bar.set_label(metric, fontsize=9)
    bar.ax.tick_params(labelsize=7)
    cells.head(figure, f"{NAMES.get(metric, metric)} ({metric})")
    text = "Mean over seeds; site 1 is next to the input"
    text += ", the last one is the final norm." if last else "."
    if len(maps) > len(shown):
        text += f" {len(shown)} of {len(maps)} cells, those of the primary first."
    style.caption(figure, f"{text} {cells.RULES.get(rule, rule).capitalize()}.")
    return figure


def with_final(steps: list[int], values: np.ndarray, rows) -> np.ndarray:
    """The final norm as one more site."""
    at, final = cells.mean_by_step(rows)
    column = np.full((len(steps), 1), np.nan)
    for step, value in zip(at, final[:, 0], strict=True):
        if step in steps:
            column[steps.index(step), 0] = value
    return np.concatenate([values, column], axis=1)


def _first(study: Study, maps: dict) -> list:
    p = study.design.primary
    main = [(r, c) for r in p.rows for c in p.columns if (r, c) in maps]
    return [*main, *(cell for cell in maps if cell not in main)][:MAX_PANELS]


def _per_row(shown: list) -> int:
    """Whole rows of the design where they fit."""
    columns = len(dict.fromkeys(column for _, column in shown))
    return 4 if columns in (1, 4) else max(2, columns) if columns < 4 else 4
