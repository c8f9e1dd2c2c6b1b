"""The interaction against a number: alpha of a pointwise norm, a spectral cap."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator

from analysis.interaction.design import Contrast, Dose, difference
from analysis.interaction.estimates import Estimate, estimate
from analysis.interaction.study import Study
from analysis.plots import cells, style


def dose_figure(study: Study, doses: Sequence[Dose]) -> Figure:
    """The interaction of every level with the baselines, with its 95 % t interval, one
    line per dose and a panel per learning-rate rule.

    Args:
        doses: of one `x`.

    Raises:
        ValueError: no level was measured.
    """
    rules = [
        rule for rule in study.rules if any(_points(study, d, rule) for d in doses)
    ]
    if not rules:
        raise ValueError("no level of this dose was measured")
    looks = style.looks([dose.id for dose in doses])
    figure, panels = cells.grid(len(rules), 3, 3.1, 2.9, sharey=True)
    for axes, rule in zip(panels, rules, strict=True):
        axes.axhline(0, color=style.MUTED, lw=0.8)
        for dose in doses:
            points = _points(study, dose, rule)
            look = looks[dose.id]
            axes.errorbar(
                [x for x, _ in points],
                [e.interval.mean for _, e in points],
                yerr=np.nan_to_num([e.interval.half_width for _, e in points]),
                color=look.colour,
                marker=look.marker,
                ls=look.dashes,
                ms=5.5,
                mec="white",
                mew=0.6,
                lw=1.4,
                elinewidth=1.3,
                label=style.plain(dose.id),
            )
        style.tidy(axes, x=style.plain(doses[0].x), y="")
        at = sorted({x for d in doses for x, _ in _points(study, d, rule)})
        axes.xaxis.set_major_locator(FixedLocator(at))
        axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
        cells.panel_title(axes, cells.RULES.get(rule, rule))
    panels[0].set_ylabel(
        f"interaction, {study.design.metric}", fontsize=10, color=style.INK
    )
    if len(doses) > 1:
        cells.beside(panels[-1])
    cells.head(figure, f"Interaction against {style.plain(doses[0].x)}")
    p = study.design.primary
    is_rows = doses[0].is_rows
    rows = (p.rows[0], "level") if is_rows else p.rows
    columns = p.columns if is_rows else (p.columns[0], "level")
    text = f"({difference(rows)}, {difference(columns)})"
    style.caption(
        figure,
        f"{text}, paired by seed, with the 95 % Student-t interval over seeds.",
    )
    return figure


def contrast_of(study: Study, dose: Dose, label: str) -> Contrast | None:
    """The interaction of one level; None where it is a baseline itself."""
    p = study.design.primary
    rows = (p.rows[0], label) if dose.is_rows else p.rows
    columns = p.columns if dose.is_rows else (p.columns[0], label)
    if len(set(rows)) < 2 or len(set(columns)) < 2:
        return None
    return Contrast(label, rows, columns)


def _points(study: Study, dose: Dose, rule: str) -> list[tuple[float, Estimate]]:
    found = []
    for label, x in sorted(dose.levels.items(), key=lambda pair: pair[1]):
        contrast = contrast_of(study, dose, label)
        if contrast is not None:
            e = estimate(contrast, study.values(rule))
            if e.interval.n:
                found.append((x, e))
    return found
