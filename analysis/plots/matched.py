"""The gap to the baseline while training, in both columns."""

import numpy as np
from matplotlib.figure import Figure

from analysis.interaction.design import difference
from analysis.interaction.estimates import cell_curves, primary
from analysis.interaction.matched import curves
from analysis.interaction.study import Study
from analysis.plots import cells, style
from analysis.stats import t_interval
from analysis.text import count


def gap_figure(study: Study) -> Figure:
    """Left: gap of the primary's second row to the first against the step, one line
    per column with its 95 % t band; right: the same gap against the loss that the
    baseline has reached, on which the columns are at equal progress. Dotted: where
    the column that is ahead is read for the matched interaction.

    Raises:
        ValueError: no seed has all four cells of the primary hypothesis.
    """
    contrast = study.design.primary
    of = curves(study.table.metrics, study.design.metric)
    rule = study.rules[0] if study.rules else ""
    seeds = cell_curves(study, rule, contrast, of)
    if not seeds:
        raise ValueError("no seed has all four cells of the primary hypothesis")
    looks = cells.column_looks(study)
    figure = style.new_figure(8.6, 3.9)
    left, right = figure.subplots(1, 2, sharey=True)
    for place, column in enumerate(contrast.columns):
        _against_step(left, seeds, place, looks[column], style.plain(column))
        _against_loss(right, seeds, place, looks[column], style.plain(column))
    for match in primary(study, rule, of).matches.values():
        if match.rewound:
            colour = looks[match.rewound].colour
            left.axvline(match.step, color=colour, lw=0.9, ls=(0, (1, 2)), zorder=0)
    a, metric = contrast.rows, study.design.metric
    style.tidy(left, x="training step", y=f"gap in {metric}")
    style.tidy(right, x=f"{metric} of {style.plain(a[0])} at the same step", y="")
    for axes in (left, right):
        axes.axhline(0, color=style.MUTED, lw=0.8)
        axes.margins(x=0.02)
    _settle(left, right, seeds)
    cells.beside(right, title=study.design.columns.name)
    cells.head(figure, f"{style.plain(difference(a))} while training")
    style.caption(
        figure,
        f"Mean over {count(len(seeds), 'seed')}, {cells.RULES.get(rule, rule)}; band: "
        f"95 % Student-t interval, from {style.BAND_SEEDS} seeds. Dotted: step at which "
        "the baseline of the column that is ahead reached the final loss of the other, "
        "one line per seed. The right panel has a line per seed.",
    )
    return figure


def _against_step(axes, seeds: dict, place: int, look, label: str) -> None:
    steps = sorted({s for four in seeds.values() for s in four[0, place].steps})
    # Step 0 is one untrained model against another: nothing has been learned.
    steps = [s for s in steps if s > 0] or steps
    rows = [
        [four[1, place].at(s) - four[0, place].at(s) for s in steps]
        for four in seeds.values()
    ]
    found = [t_interval(column) for column in np.array(rows).T]
    axes.plot(
        steps,
        [i.mean for i in found],
        color=look.colour,
        marker=look.marker,
        ms=4,
        mec="white",
        mew=0.5,
        markevery=max(1, len(steps) // 12),
        lw=1.5,
        label=label,
        zorder=3,
    )
    if len(seeds) >= style.BAND_SEEDS:
        low, high = [i.low for i in found], [i.high for i in found]
        axes.fill_between(steps, low, high, color=look.colour, alpha=0.15, lw=0)


def _against_loss(axes, seeds: dict, place: int, look, label: str) -> None:
    for number, four in enumerate(seeds.values()):
        steps = four[0, place].steps[1:]
        axes.plot(
            [four[0, place].at(s) for s in steps],
            [four[1, place].at(s) - four[0, place].at(s) for s in steps],
            color=look.colour,
            lw=1.0,
            alpha=0.75,
            label=label if number == 0 else None,
        )
        axes.plot(
            four[0, place].final,
            four[1, place].final - four[0, place].final,
            marker=look.marker,
            ms=5,
            mec="white",
            mew=0.5,
            color=look.colour,
            zorder=4,
        )


def _settle(left, right, seeds: dict) -> None:
    """Loss falls to the right, as time does on the left; the first drop is not shown."""
    losses = [
        four[0, place].at(s)
        for four in seeds.values()
        for place in (0, 1)
        for s in four[0, place].steps[1:]
        if s >= 0.1 * four[0, place].steps[-1]
    ]
    low, high = min(losses), max(losses)
    right.set_xlim(high, low - 0.04 * (high - low or 1))
    drawn = [
        y
        for four in seeds.values()
        for place in (0, 1)
        for s in four[0, place].steps[1:]
        if s >= 0.1 * four[0, place].steps[-1]
        for y in (four[1, place].at(s) - four[0, place].at(s),)
    ]
    low, high = min([0.0, *drawn]), max([0.0, *drawn])
    pad = 0.08 * (high - low) or 0.05
    left.set_ylim(low - pad, high + pad)
