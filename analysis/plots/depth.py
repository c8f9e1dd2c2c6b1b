"""A norm against depth on log-log axes, with the fitted law and the theory."""

import math

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, NullLocator

from analysis.depths import DepthSample, depth_sample, probe_values
from analysis.laws.power import power_law
from analysis.plots import style
from analysis.plots.window import Window, cut_axis, window_of
from analysis.stats import geometric_interval
from analysis.text import count, minus, with_interval
from analysis.theory import Theory, theory_for

# Faint lines to hold a slope against: exponent and how it is written.
GUIDES = ((0.0, "$L^{0}$"), (-0.5, "$L^{-1/2}$"), (-1.0, "$L^{-1}$"))


def depth_figure(
    runs: pl.DataFrame,
    probes: pl.DataFrame,
    quantity: str = "grad_norm/ffn/up/kernel",
    layer: str = "last",
    title: str = "",
    y: str = "",
) -> Figure:
    """Every network faint, the geometric mean over seeds with its 95 % t interval, the
    fitted law (solid; a power law with its exponent, an exponential with its rate per
    block where that fits better), and the theory at the measured s0^2 and v (dashed;
    last layer only). Grey: slopes 0, -1/2 and -1. Arrows: see `window.window_of`. With
    nine variants or more the single networks and the theory are left out and the legend
    stands at the side.

    Args:
        runs, probes: frames of one depth family.
        quantity: a probe with a value per layer.
        layer: "first" or "last".
        title, y: instead of the quantity's name.

    Raises:
        ValueError: no completed run recorded `quantity`.
    """
    values = probe_values(runs, probes, quantity, layer)
    variants = list(values["variant"].unique(maintain_order=True))
    if not variants:
        raise ValueError(f"no completed run recorded {quantity}")
    is_many = len(variants) >= style.MANY
    # By the family's variants: the colour of one is the same in every figure.
    looks = style.looks(list(runs["variant"].unique(maintain_order=True)))
    figure = _new_figure(len(variants), is_many)
    axes = figure.subplots()
    window = window_of(dict(values.group_by("variant").agg("value").rows()))
    handles, notes, has_theory = [], [], False
    # Side by side, not on top of each other; together never wider than 15 %.
    spread = min(0.035 * (len(variants) - 1), 0.15)
    shifts = np.exp(np.linspace(-spread / 2, spread / 2, len(variants)))
    for variant, shift in zip(variants, shifts, strict=True):
        look = looks[variant]
        sample = depth_sample(values.filter(pl.col("variant") == variant))
        _draw_points(axes, sample, look, shift, is_many)
        label = f"{style.plain(variant)}: {count(len(sample.points), 'network')}"
        dashes = "none"
        if len(sample.depths) > 1 and sample.by_seed:
            law = power_law(sample.depths, sample.by_seed)
            theory = theory_for(runs, probes, variant, law)
            _draw_law(axes, law, look)
            if layer == "last" and theory.shape != "none" and not is_many:
                _draw_theory(axes, law, theory, look)
                has_theory = True
            label, dashes = _label(variant, law, theory, layer, is_many), look.dashes
        notes += [f"{variant}: {note}" for note in sample.left_out]
        handles.append(_handle(look, dashes, label))
    if has_theory:
        handles.append(_theory_handle())
    _set_scales(axes, sorted(values["n_layers"].unique()))
    cut_axis(axes, values, window, looks)
    _draw_guides(axes)
    norm = r"$\Vert\partial\,$loss$/\partial W\Vert_F$"
    y_label = norm if "grad_norm" in quantity else y or quantity
    name = quantity.removeprefix("grad_norm/")
    head = f"Gradient of {name} in the {layer} block"
    style.tidy(axes, x="depth L [blocks]", y=y_label, title=title or head)
    _legend(axes, handles, is_many)
    style.caption(figure, _caption(is_many, has_theory, notes, window))
    return figure


def _new_figure(n_variants: int, is_many: bool) -> Figure:
    if is_many:
        return style.new_figure(9.2, max(5.0, 1.3 + 0.165 * n_variants))
    return style.new_figure(9.2, 4.6 + 0.24 * _legend_rows(n_variants + 1))


def _legend(axes: Axes, handles: list[Line2D], is_many: bool) -> None:
    place = (1.1, 1.02) if is_many else (0, -0.13)
    axes.legend(
        handles=handles,
        loc="upper left",
        bbox_to_anchor=place,
        ncols=1 if is_many else _legend_columns(len(handles)),
        frameon=False,
        fontsize=7.5 if is_many else 9,
        labelspacing=0.25 if is_many else 0.5,
        borderaxespad=0,
        handlelength=2.6,
    )


def _legend_columns(entries: int) -> int:
    return 1 if entries < 5 else 2


def _legend_rows(entries: int) -> int:
    return math.ceil(entries / _legend_columns(entries))


def _set_scales(axes: Axes, depths: list[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_locator(FixedLocator(depths))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}")


def _draw_guides(axes: Axes) -> None:
    """From the highest line at the smallest depth to the right edge, where its name
    stands; a slope that leaves the window before is not drawn."""
    ends = [line.get_data() for line in axes.lines if len(line.get_xdata()) == 100]
    if not ends:
        return
    (x0, x1), (low, high) = axes.get_xlim(), axes.get_ylim()
    start = min(x[0] for x, _ in ends)
    tops = [y[0] for x, y in ends if x[0] == start and y[0] < high]
    if not tops:
        return
    top = max(tops)
    for slope, name in GUIDES:
        span = np.array([start, x1])
        line = top * (span / start) ** slope
        if not low < line[1] < high:
            continue
        axes.plot(span, line, color=style.MUTED, lw=0.8, alpha=0.45, zorder=1)
        axes.annotate(
            name,
            (x1, line[1]),
            xytext=(3, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
            color=style.MUTED,
            annotation_clip=False,
        )
    axes.set_xlim(x0, x1)
    axes.set_ylim(low, high)


def _draw_points(axes, sample: DepthSample, look, shift: float, is_many: bool) -> None:
    depths = np.array([d for d, _, _ in sample.points], float)
    values = [value for _, _, value in sample.points]
    if not is_many:
        axes.plot(
            depths * shift,
            values,
            ls="none",
            marker=look.marker,
            ms=3,
            mew=0,
            color=look.colour,
            alpha=0.28,
            zorder=2,
        )
    grid = sorted(set(depths.astype(int).tolist()))
    means = [geometric_interval(sample.at(depth)) for depth in grid]
    middle = np.array([m.mean for m in means])
    ends = [
        np.nan_to_num(middle - [m.low for m in means]),
        np.nan_to_num([m.high for m in means] - middle),
    ]
    axes.errorbar(
        np.array(grid) * shift,
        middle,
        yerr=ends,
        ls="none",
        marker=look.marker,
        ms=4.5 if is_many else 7,
        mec="white",
        mew=0.5 if is_many else 0.8,
        capsize=0 if is_many else 3,
        elinewidth=0.6 if is_many else 1.5,
        color=look.colour,
        zorder=4,
    )


def _draw_law(axes, law, look) -> None:
    span = np.geomspace(law.depths[0], law.depths[-1], 100)
    line = law.exponential(span) if law.kind == "exponential" else law(span)
    axes.plot(span, line, color=look.colour, lw=1.6, ls=look.dashes, zorder=3)


def _draw_theory(axes, law, theory: Theory, look) -> None:
    offsets = np.log(law.geometric_means) - np.log(theory.relative(law.depths))
    span = np.geomspace(law.depths[0], law.depths[-1], 99)
    axes.plot(
        span,
        np.exp(offsets.mean()) * theory.relative(span),
        color=style.INK,
        ls=(0, (4, 2)),
        lw=1.2,
        zorder=5,
        alpha=0.8,
    )


def _handle(look, dashes, label: str) -> Line2D:
    return Line2D([], [], color=look.colour, marker=look.marker, ls=dashes, label=label)


def _theory_handle() -> Line2D:
    label = r"theory: $C/\sqrt{s_0^2 + vL}$, constant, or mean field"
    return Line2D([], [], color=style.INK, ls=(0, (4, 2)), lw=1.2, label=label)


def _label(variant: str, law, theory: Theory, layer: str, is_many: bool) -> str:
    number = law.rate if law.kind == "exponential" else law.exponent
    value = with_interval(number.mean, number.half_width).replace("±", r"\pm")
    if law.kind == "exponential":
        formula = rf"$e^{{({value})\,L}}$"
    else:
        formula = f"$L^{{{value}}}$"
    name = style.shorten(variant) if is_many else variant
    label = f"{style.plain(name)}: {formula}, n={law.n}"
    if layer == "last" and theory.shape != "none" and not is_many:
        label += f" (theory {minus(f'{theory.exponent:.3f}')})"
    return label


def _caption(is_many: bool, has_theory: bool, notes: list[str], window: Window) -> str:
    text = "" if is_many else "Faint: one network each. "
    text += (
        "Large: geometric mean over seeds with a 95 % Student-t interval. Line: fitted "
        "law; its exponent is the mean of the seeds' own fits, with the t interval over "
        "n seeds. Grey: slopes for comparison."
    )
    if has_theory:
        text += (
            " Dashed: theory at the measured s₀² and v, height fitted; theory in "
            "the legend: the exponent that the same fit finds in it on these depths."
        )
    text += window.note("axis (arrows)")
    if notes:
        text += f" Not in the fit: {'; '.join(notes[:6])}"
        text += f"; and {len(notes) - 6} more." if len(notes) > 6 else "."
    return text
