"""Cells of the tables of a study."""

from analysis.interaction.design import difference
from analysis.text import NOTHING, minus, number, with_interval


def compared(contrast: dict) -> str:
    """`derf − rmsnorm, muon − adamw`."""

    text = f"{difference(contrast['rows'])}, {difference(contrast['columns'])}"
    if contrast["quantity"]:
        at = {"last": "at the end", "mean": "mean over the run"}.get(
            contrast["at"], f"at step {contrast['at']}"
        )
        text = f"{contrast['quantity']} ({contrast['reduce']}, {at}): {text}"
    return text


def interval_text(node: dict) -> str:
    if not node["n"]:
        return NOTHING
    text = minus(with_interval(node["mean"], node["half_width"]))
    return text if node["n"] > 1 else f"{text} (one seed)"


def ratio_text(ratio: dict, *, percent: bool = False) -> str:
    if ratio["reason"]:
        return f"undefined: {ratio['reason']}"
    scale = 100 if percent else 1
    values = [scale * ratio[key] for key in ("value", "low", "high")]
    return range_text(*values) + (" %" if percent else "")


def boot_text(ratio: dict) -> str:
    if ratio["reason"]:
        return NOTHING
    low, high = 100 * ratio["boot_low"], 100 * ratio["boot_high"]
    return minus(f"[{low:.3g}, {high:.3g}] %")


def range_text(mean: float, low: float, high: float) -> str:
    return minus(f"{mean:.3g} [{low:.3g}, {high:.3g}]")


def sign_flip_text(node: dict) -> str:
    n = node["n"]
    if n < 2:
        return NOTHING
    smallest = 2.0 ** (1 - n)
    text = p_text(node["p_sign_flip"])
    return f"{text} (≥ {smallest:.3g})" if smallest > 0.01 else text


def p_text(value: float) -> str:
    if value != value:
        return NOTHING
    return f"{value:.3f}" if value >= 0.001 else "< 0.001"


def signed(value: float | None) -> str:
    return NOTHING if value is None or value != value else minus(f"{value:+.4f}")


def loss_text(point: dict) -> str:
    if point["value"] == point["value"]:
        return number(point["value"])
    return point["states"] or "no value"
