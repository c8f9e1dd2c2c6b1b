"""A norm against depth on log-log axes, with the fitted law and the theory."""

import math

import numpy as np
import polars as pl
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, NullLocator

from analysis.depths import DepthSample, Theory, depth_sample, probe_values, theory_for
from analysis.laws import power_law
from analysis.plots import style
from analysis.stats import geometric_interval
from analysis.text import count, minus, with_interval


def depth_figure(
    runs: pl.DataFrame,
    probes: pl.DataFrame,
    quantity: str = "grad_norm/ffn/up/kernel",
    layer: str = "last",
    title: str = "",
) -> Figure:
    """Every network faint, the geometric mean over seeds with its 95 % t interval, the
    fitted law (solid; a power law with its exponent, an exponential with its rate per
    block where that fits better), and the theory at the measured s0^2 and v (dashed;
    last layer only).

    Args:
        runs, probes: frames of one depth family.
        quantity: a probe with a value per layer.
        layer: "first" or "last".

    Raises:
        ValueError: no completed run recorded `quantity`.
    """
    values = probe_values(runs, probes, quantity, layer)
    variants = list(values["variant"].unique(maintain_order=True))
    if not variants:
        raise ValueError(f"no completed run recorded {quantity}")
    # By the family's variants: the colour of one is the same in every figure.
    looks = style.looks(list(runs["variant"].unique(maintain_order=True)))
    figure = style.new_figure(9.2, 4.6 + 0.24 * _legend_rows(len(variants) + 1))
    axes = figure.subplots()
    handles, notes, has_theory = [], [], False
    # Side by side, not on top of each other; together never wider than 15 %.
    spread = min(0.035 * (len(variants) - 1), 0.15)
    shifts = np.exp(np.linspace(-spread / 2, spread / 2, len(variants)))
    for variant, shift in zip(variants, shifts, strict=True):
        look = looks[variant]
        sample = depth_sample(values.filter(pl.col("variant") == variant))
        _draw_points(axes, sample, look, shift)
        label = f"{style.plain(variant)}: {count(len(sample.points), 'network')}"
        dashes = "none"
        if len(sample.depths) > 1 and sample.by_seed:
            law = power_law(sample.depths, sample.by_seed)
            theory = theory_for(runs, probes, variant, law)
            _draw_law(axes, law, look)
            if layer == "last" and theory.shape != "none":
                _draw_theory(axes, law, theory, look)
                has_theory = True
            label, dashes = _label(variant, law, theory, layer), look.dashes
        notes += [f"{variant}: {note}" for note in sample.left_out]
        handles.append(
            Line2D(
                [], [], color=look.colour, marker=look.marker, ls=dashes, label=label
            )
        )
    if has_theory:
        theory_label = r"theory, $C/\sqrt{s_0^2 + vL}$ or constant"
        handles.append(
            Line2D([], [], color=style.INK, ls=(0, (4, 2)), lw=1.2, label=theory_label)
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    depths = sorted(values["n_layers"].unique())
    axes.xaxis.set_major_locator(FixedLocator(depths))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    norm = r"$\Vert\partial\,$loss$/\partial W\Vert_F$"
    y_label = norm if "grad_norm" in quantity else quantity
    name = quantity.removeprefix("grad_norm/")
    head = f"Gradient of {name} in the {layer} block"
    style.tidy(axes, x="depth L [blocks]", y=y_label, title=title or head)
    axes.legend(
        handles=handles,
        loc="upper left",
        bbox_to_anchor=(0, -0.13),
        ncols=_legend_columns(len(handles)),
        frameon=False,
        fontsize=9,
        borderaxespad=0,
        handlelength=2.6,
    )
    text = (
        "Faint: one network each. Large: geometric mean over seeds with a 95 % "
        "Student-t interval. Line: fitted law; its exponent is the mean of the seeds' "
        "own fits, with the t interval over n seeds."
    )
    if has_theory:
        text += (
            " Dashed: theory at the measured s₀² and v, height fitted; theory in "
            "the legend: the exponent that the same fit finds in it on these depths."
        )
    if notes:
        text += f" Not in the fit: {'; '.join(notes)}."
    style.caption(figure, text)
    return figure


def _legend_columns(entries: int) -> int:
    return 1 if entries < 5 else 2


def _legend_rows(entries: int) -> int:
    return math.ceil(entries / _legend_columns(entries))


def _draw_points(axes, sample: DepthSample, look, shift: float) -> None:
    depths = np.array([d for d, _, _ in sample.points], float)
    values = [value for _, _, value in sample.points]
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
        ms=7,
        mec="white",
        mew=0.8,
        capsize=3,
        elinewidth=1.5,
        color=look.colour,
        zorder=4,
    )


def _draw_law(axes, law, look) -> None:
    span = np.geomspace(law.depths[0], law.depths[-1], 100)
    line = law.exponential(span) if law.kind == "exponential" else law(span)
    axes.plot(span, line, color=look.colour, lw=1.6, ls=look.dashes, zorder=3)


def _draw_theory(axes, law, theory: Theory, look) -> None:
    offsets = np.log(law.geometric_means) - np.log(theory.relative(law.depths))
    span = np.geomspace(law.depths[0], law.depths[-1], 100)
    axes.plot(
        span,
        np.exp(offsets.mean()) * theory.relative(span),
        color=style.INK,
        ls=(0, (4, 2)),
        lw=1.2,
        zorder=5,
        alpha=0.8,
    )


def _label(variant: str, law, theory: Theory, layer: str) -> str:
    number = law.rate if law.kind == "exponential" else law.exponent
    value = with_interval(number.mean, number.half_width).replace("±", r"\pm")
    if law.kind == "exponential":
        formula = rf"$e^{{({value})\,L}}$"
    else:
        formula = f"$L^{{{value}}}$"
    label = f"{style.plain(variant)}: {formula}, n={law.n}"
    if layer == "last" and theory.shape != "none":
        label += f" (theory {minus(f'{theory.exponent:.3f}')})"
    return label
