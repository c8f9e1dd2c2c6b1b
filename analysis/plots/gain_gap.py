"""The final gap of every cell against a probed quantity: does one curve fit all?"""

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from scipy import stats

from analysis.interaction.design import Contrast
from analysis.interaction.estimates import probe_numbers
from analysis.interaction.study import Study
from analysis.paired import combine
from analysis.plots import cells, style
from analysis.stats import Interval, t_interval
from analysis.text import minus

GAIN = "site/gain_eff"
RIVALS = ("site/lin_cos", "site/elasticity")  # what else may explain a gap


def gain_gap_figure(study: Study, quantity: str = GAIN) -> Figure:
    """Gap to the baseline row of the same column, paired by seed, against the mean of
    `quantity` over sites and probed steps; intervals over seeds on both axes, colours
    are rows, marks are columns.

    Raises:
        ValueError: no cell has both.
    """
    rule = study.rules[0] if study.rules else ""
    points = _points(study, rule, quantity)
    if not points:
        raise ValueError(f"no cell has {quantity} and a gap")
    rows, columns = cells.row_looks(study), cells.column_looks(study)
    figure = style.new_figure(style.TWO_COLUMNS, 4.0)
    axes = figure.subplots()
    axes.axhline(0, color=style.MUTED, lw=0.8)
    for (row, column), (x, y) in points.items():
        axes.errorbar(
            x.mean,
            y.mean,
            xerr=_bar(x),
            yerr=_bar(y),
            color=rows[row].colour,
            marker=columns[column].marker,
            ms=6.5,
            mec="white",
            mew=0.6,
            elinewidth=1.0,
        )
    style.tidy(
        axes,
        x=f"{quantity.removeprefix('site/')}, mean over sites and the run",
        y=f"gap in final {study.design.metric}",
        title="Final gap against what the norm does",
    )
    baseline = study.design.primary.rows[0]
    shown = dict.fromkeys(row for row, _ in points)
    dots = {"marker": "o", "ls": "none"}
    handles = [
        Line2D([], [], color=rows[r].colour, label=style.plain(r), **dots)
        for r in shown
    ]
    handles += [
        Line2D(
            [],
            [],
            color=style.INK,
            marker=columns[c].marker,
            ls="none",
            label=style.plain(c),
        )
        for c in dict.fromkeys(column for _, column in points)
    ]
    cells.beside(axes, handles=handles)
    fits = {quantity: _correlation(points)} | {
        rival: _correlation(_points(study, rule, rival)) for rival in RIVALS
    }
    style.caption(figure, _caption(baseline, cells.RULES.get(rule, rule), fits))
    return figure


def _points(study: Study, rule: str, quantity: str) -> dict:
    everywhere = Contrast("x", (), (), quantity=quantity, at="mean")
    numbers = study.values(rule, probe_numbers(study, everywhere))
    finals, baseline = study.values(rule), study.design.primary.rows[0]
    found = {}
    for row, column in study.cells:
        x = list(numbers.get((row, column), {}).values())
        pair = [finals.get((r, column), {}) for r in (row, baseline)]
        gaps = combine([(1, pair[0]), (-1, pair[1])]) if all(pair) else {}
        if x and gaps and row != baseline:
            found[row, column] = t_interval(x), t_interval(list(gaps.values()))
    return found


def _bar(interval: Interval) -> list[float] | None:
    return [interval.half_width] if interval.n >= style.BAND_SEEDS else None


def _correlation(points: dict) -> tuple[float, int] | None:
    """Spearman's rank correlation over cells, and how many; None for three or fewer."""
    if len(points) <= 3:
        return None
    xs, ys = np.array([(x.mean, y.mean) for x, y in points.values()]).T
    return float(stats.spearmanr(xs, ys).statistic), len(points)


def _caption(baseline: str, rule: str, fits: dict) -> str:
    text = (
        f"Gap to {baseline} in the same column, paired by seed, {rule}; bars: 95 % "
        f"Student-t intervals, from {style.BAND_SEEDS} seeds."
    )
    found = [
        f"{quantity.removeprefix('site/')} {minus(f'{fit[0]:.2f}')} ({fit[1]} cells)"
        for quantity, fit in fits.items()
        if fit
    ]
    return f"{text} Rank correlation with: {', '.join(found)}." if found else text
