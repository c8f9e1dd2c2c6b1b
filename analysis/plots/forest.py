"""Exponents of all variants, one row each: what the fits found, and what theory says."""

import numpy as np
import polars as pl
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis.depths import DOWN, UP, depth_sample, probe_values
from analysis.laws.power import PowerLaw, power_law
from analysis.plots import style
from analysis.text import minus, with_interval
from analysis.theory import theory_for

# quantity, name, whether its marker is filled
SHOWN = ((UP, "W1", True), (DOWN, "W2", False))
ROW = 0.26  # inch


def forest_figure(
    runs: pl.DataFrame, probes: pl.DataFrame, layer: str = "last", title: str = ""
) -> Figure:
    """Exponent p of g ~ L^p per variant with its 95 % t interval over seeds, smallest
    on top: W1 filled, W2 hollow. Grey diamond: what the same fit finds in the theory at
    the measured s0^2 and v (last block). Lines: 0 and -1/2.

    Args:
        runs, probes: frames of one depth family.
        layer: "first" or "last".

    Raises:
        ValueError: no variant has two depths.
    """
    laws = {name: _laws(runs, probes, q, layer) for q, name, _ in SHOWN}
    variants = list(runs["variant"].unique(maintain_order=True))
    looks = style.looks(variants)
    shown = [v for v in variants if any(v in of for of in laws.values())]
    if not shown:
        raise ValueError("no variant has completed runs at two depths")
    first = next(name for name in laws if laws[name])
    shown.sort(key=lambda v: _mean(laws[first].get(v)))
    window = _window(laws)
    figure = style.new_figure(style.TWO_COLUMNS, 1.9 + ROW * len(shown))
    axes = figure.subplots()
    for row, variant in enumerate(shown):
        for offset, (_, name, is_filled) in zip((-0.13, 0.13), SHOWN, strict=True):
            law = laws[name].get(variant)
            if law is not None:
                _draw(axes, law, row + offset, looks[variant], is_filled, window)
        if layer == "last" and first == "W1" and variant in laws["W1"]:
            theory = theory_for(runs, probes, variant, laws["W1"][variant])
            if window[0] <= theory.exponent <= window[1]:
                axes.plot(
                    theory.exponent,
                    row,
                    "D",
                    ms=6,
                    color=style.MUTED,
                    alpha=0.5,
                    zorder=1,
                )
    for slope in (0.0, -0.5):
        axes.axvline(slope, color=style.MUTED, lw=0.8, ls=(0, (1, 2)), zorder=0)
    style.tidy(
        axes,
        x="exponent p of $g \\propto L^p$",
        y="",
    )
    head = title or f"Exponents of the {layer} block"
    # Above the legend, which stands between it and the rows.
    axes.set_title(head, loc="left", fontsize=11, color=style.INK, pad=24)
    _label_rows(axes, shown, laws[first])
    axes.set_ylim(len(shown) - 0.4, -0.6)
    _legend(axes, laws, layer)
    caption = _caption(first, laws[first])
    if np.isfinite(window[0]):
        axes.set_xlim(window)
        caption += " Arrows: beyond the axis."
    style.caption(figure, caption)
    return figure


def _window(laws: dict[str, dict[str, PowerLaw]]) -> tuple[float, float]:
    """What of the axis is shown: all of it, unless a variant without a power law lies so
    far off that the others could not be told apart.
    """
    found = [law for of in laws.values() for law in of.values()]
    means = [law.exponent.mean for law in found if law.kind != "exponential"]
    low, high = min([-0.5, *means]), max([0.0, *means])
    low, high = low - (high - low) / 2, high + (high - low) / 2
    if all(low <= law.exponent.mean <= high for law in found):
        return -np.inf, np.inf
    return low, high


def _laws(runs, probes, quantity: str, layer: str) -> dict[str, PowerLaw]:
    values = probe_values(runs, probes, quantity, layer)
    found = {}
    for variant in values["variant"].unique(maintain_order=True):
        sample = depth_sample(values.filter(variant=variant))
        if len(sample.depths) > 1 and sample.by_seed:
            found[variant] = power_law(sample.depths, sample.by_seed)
    return found


def _mean(law: PowerLaw | None) -> float:
    return law.exponent.mean if law else np.inf


def _draw(
    axes, law: PowerLaw, y: float, look, is_filled: bool, window: tuple[float, float]
) -> None:
    exponent = law.exponent
    fill = look.colour if is_filled else "white"
    if not window[0] <= exponent.mean <= window[1]:
        is_above = exponent.mean > window[1]
        axes.plot(
            window[is_above],
            y,
            ">" if is_above else "<",
            ms=6,
            color=look.colour,
            mfc=fill,
            clip_on=False,
            zorder=3,
        )
        return
    axes.errorbar(
        exponent.mean,
        y,
        xerr=[exponent.half_width] if exponent.has_interval else None,
        marker="o",
        ms=4.5,
        color=look.colour,
        mfc=fill,
        mew=1,
        elinewidth=1.3,
        capsize=0,
        zorder=3,
    )


def _label_rows(axes, shown: list[str], laws: dict[str, PowerLaw]) -> None:
    """Names on the left, numbers on the right."""
    names = [style.plain(style.shorten(variant)) for variant in shown]
    axes.set_yticks(range(len(shown)), names, fontsize=8)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    for row, variant in enumerate(shown):
        law = laws.get(variant)
        if law is None:
            continue
        text = minus(with_interval(law.exponent.mean, law.exponent.half_width))
        text += " (exponential)" if law.kind == "exponential" else ""
        axes.annotate(
            text,
            (1, row),
            xycoords=("axes fraction", "data"),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
            color=style.INK,
            annotation_clip=False,
        )


def _legend(axes, laws: dict[str, dict], layer: str) -> None:
    handles = [
        Line2D(
            [],
            [],
            color=style.INK,
            marker="o",
            ls="none",
            mfc=style.INK if is_filled else "white",
            label=name,
        )
        for _, name, is_filled in SHOWN
        if laws[name]
    ]
    if layer == "last":
        handles.append(
            Line2D([], [], color=style.MUTED, marker="D", ls="none", label="theory, W1")
        )
    axes.legend(
        handles=handles,
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=len(handles),
        frameon=False,
        fontsize=8,
        borderaxespad=0.2,
    )


def _caption(name: str, laws: dict[str, PowerLaw]) -> str:
    sizes = sorted({law.n for law in laws.values()})
    seeds = " to ".join(map(str, dict.fromkeys((sizes[0], sizes[-1]))))
    return (
        f"Mean of the slopes of ln g on ln L of {seeds} seeds with the 95 % Student-t "
        f"interval; numbers: {name}. Theory: the same fit to the curve at the measured "
        "s₀² and v. Dotted: 0 and \N{MINUS SIGN}1/2."
    )
