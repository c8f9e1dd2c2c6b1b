"""Where the parameters of a model are: one bar, cut into its parts."""

from collections.abc import Mapping

from matplotlib.figure import Figure

from analysis.plots import style

HATCHES = ("", "////")  # of the second round through the colours


def parts_figure(counts: Mapping[str, dict]) -> Figure:
    """Shares of the parts in all parameters, and for mixtures in those of one token.

    counts: label -> contents of a count.json, drawn from the top.

    Raises:
        ValueError: there is nothing to draw.
    """
    if not counts:
        raise ValueError("no counts to draw")
    bars = _bars(counts)
    figure = style.new_figure(style.TWO_COLUMNS, 1.5 + 0.42 * len(bars))
    axes = figure.subplots()
    looks = _looks(counts)
    for row, (_, parts, total) in enumerate(bars):
        left = 0.0
        for part, n in parts.items():
            share = 100 * n / total
            colour, hatch = looks[part]
            axes.barh(
                row,
                share,
                left=left,
                height=0.66,
                color=colour,
                hatch=hatch,
                edgecolor="white",
                linewidth=0.6,
                label=part if row == _first_with(part, bars) else None,
            )
            if share >= 6:
                middle = left + share / 2
                text = axes.text(middle, row, f"{share:.0f} %", fontsize=8)
                text.set(ha="center", va="center", color="white")
            left += share
        axes.text(101, row, short(total), va="center", fontsize=9, color=style.INK)
    axes.set_yticks(range(len(bars)), [label for label, _, _ in bars])
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    style.tidy(axes, x="share of the parameters [%]", y="", title="Parameters by part")
    axes.grid(False, axis="y")
    figure.legend(loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    return figure


def short(n: int) -> str:
    """671026404352 -> 671 B, 124439808 -> 124 M."""
    for size, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if n >= size:
            return f"{n / size:.3g} {unit}"
    return str(n)


def _bars(counts: Mapping[str, dict]) -> list[tuple[str, dict[str, int], int]]:
    """Label, parts and total of each bar."""
    found = []
    for label, node in counts.items():
        keys = {label: "n_params"}
        if node["n_active"] != node["n_params"]:
            keys[f"{label}, of one token"] = "n_active"
        for name, key in keys.items():
            parts = {row["part"]: row[key] for row in node["parts"]}
            found.append((name, parts, node[key]))
    return found


def _looks(counts: Mapping[str, dict]) -> dict[str, tuple[str, str]]:
    """Part -> colour and hatch, in the order of the forward pass."""
    parts = dict.fromkeys(row["part"] for n in counts.values() for row in n["parts"])
    n = len(style.COLOURS)
    return {
        part: (style.COLOURS[i % n], HATCHES[i // n % len(HATCHES)])
        for i, part in enumerate(parts)
    }


def _first_with(part: str, bars) -> int:
    return next(i for i, (_, parts, _) in enumerate(bars) if part in parts)
