"""All contrasts of a study, one row each."""

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis.interaction.design import difference
from analysis.interaction.estimates import Estimate, estimate, primary
from analysis.interaction.matched import curves
from analysis.interaction.study import Study
from analysis.plots import cells, style
from analysis.text import minus, with_interval

ROW = 0.3  # inch
MATCHED = "at matched loss"


def contrasts_figure(study: Study) -> Figure:
    """The primary interaction, the same at matched loss, its two gaps and all other
    contrasts with 95 % t intervals over seeds; filled: the rule of the primary, whose
    numbers stand on the right, hollow: the other.

    Raises:
        ValueError: no contrast has all its cells.
    """
    by_rule = {rule: _estimates(study, rule) for rule in study.rules}
    names = [
        name
        for name in dict.fromkeys(n for of in by_rule.values() for n in of)
        if any(name in of for of in by_rule.values())
    ]
    if not names:
        raise ValueError("no contrast has completed runs in all its cells")
    figure = style.new_figure(style.TWO_COLUMNS, 1.9 + ROW * len(names))
    axes = figure.subplots()
    axes.axvline(0, color=style.MUTED, lw=0.9, ls=(0, (1, 2)), zorder=0)
    for place, rule in enumerate(study.rules):
        for row, name in enumerate(names):
            found = by_rule[rule].get(name)
            if found is not None:
                shift = 0.22 * (place - (len(study.rules) - 1) / 2)
                _draw(axes, found, row + shift, place, is_main=row == 0)
    _label_rows(axes, names, by_rule[study.rules[0]])
    style.tidy(axes, x=f"difference of final {study.design.metric}", y="")
    axes.set_title(
        "Contrasts", loc="left", fontsize=11, color=style.INK, pad=24
    )  # above the legend
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_ylim(len(names) - 0.4, -0.6)
    _set_window(axes, by_rule)
    _legend(axes, study.rules)
    style.caption(figure, _caption(study, by_rule))
    return figure


def _estimates(study: Study, rule: str) -> dict[str, Estimate]:
    of = curves(study.table.metrics, study.design.metric)
    main, values = primary(study, rule, of), study.values(rule)
    found = {
        study.design.primary.id: main.estimate,
        MATCHED: main.matched,
        **{g.contrast.id: g for g in main.gaps},
        **{c.id: estimate(c, values) for c in study.design.contrasts},
    }
    return {name: e for name, e in found.items() if e.interval.n}


def _draw(axes, found: Estimate, y: float, place: int, *, is_main: bool) -> None:
    interval = found.interval
    colour = style.COLOURS[1] if is_main else style.COLOURS[0]
    axes.errorbar(
        interval.mean,
        y,
        xerr=[interval.half_width] if interval.has_interval else None,
        marker="D" if is_main else "o",
        ms=5.5 if is_main else 4.5,
        color=colour,
        mfc=colour if place == 0 else "white",
        mew=1,
        elinewidth=1.3,
        zorder=3,
    )


def _label_rows(axes, names: list[str], shown: dict[str, Estimate]) -> None:
    labels = [style.plain(style.shorten(name, 42)) for name in names]
    axes.set_yticks(range(len(names)), labels)
    for row, name in enumerate(names):
        if name not in shown:
            continue
        interval = shown[name].interval
        text = minus(with_interval(interval.mean, interval.half_width))
        axes.annotate(
            f"{text}, n={interval.n}",
            (1, row),
            xycoords=("axes fraction", "data"),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
            color=style.INK,
            annotation_clip=False,
        )


def _set_window(axes, by_rule: dict) -> None:
    """Means, 0 and the intervals of three or more seeds; a longer one runs out."""
    found = [e.interval for of in by_rule.values() for e in of.values()]
    bars = [i for i in found if i.n >= style.BAND_SEEDS]
    low = min([0.0, *(i.mean for i in found), *(i.low for i in bars)])
    high = max([0.0, *(i.mean for i in found), *(i.high for i in bars)])
    pad = 0.06 * (high - low) or 0.05
    axes.set_xlim(low - pad, high + pad)


def _legend(axes, rules: tuple[str, ...]) -> None:
    handles = [
        Line2D(
            [],
            [],
            color=style.INK,
            marker="o",
            ls="none",
            mfc=style.INK if place == 0 else "white",
            label=cells.RULES.get(rule, rule),
        )
        for place, rule in enumerate(rules)
    ]
    axes.legend(
        handles=handles,
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=len(handles),
        frameon=False,
        fontsize=8,
        borderaxespad=0.2,
    )


def _caption(study: Study, by_rule: dict) -> str:
    sizes = sorted({e.interval.n for of in by_rule.values() for e in of.values()})
    seeds = " to ".join(map(str, np.unique([sizes[0], sizes[-1]])))
    p = study.design.primary
    return (
        f"Differences paired by seed with 95 % Student-t intervals, {seeds} seeds, not "
        f"corrected for their number. Diamond: the primary interaction ("
        f"{difference(p.rows)}, {difference(p.columns)}); below it the same where "
        "the baselines have reached one loss, and its two gaps."
    )
