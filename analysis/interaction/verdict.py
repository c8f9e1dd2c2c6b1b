"""What may be said of a contrast, and what may not."""

from analysis.interaction.design import Contrast
from analysis.text import count, minus, number, with_interval

NOT_MEASURED = "not measured"
ONE_SEED = "one seed"
TOO_FEW = "too few seeds"
NONE_BEYOND = "no effect beyond the margin"
INTERACTION = "interaction"
OPPOSITE = "interaction of the other sign"
NOT_CLAIMED = "not claimed"
HELD, DID_NOT, UNDECIDED = "held", "did not hold", "undecided"


def verdict(found, matched, log_steps) -> tuple[str, str]:
    """Status and sentence about an interaction of final values.

    It is claimed only where its interval leaves out 0 and where the interaction at
    matched loss, or that of the log step ratios, has the same sign: a gap in nats that
    differs because one column is further along its curve is no interaction.

    Args:
        found, matched, log_steps: `Estimate`s of the three scales.
    """
    interval, contrast = found.interval, found.contrast
    if interval.n == 0:
        lacking = ", ".join(found.missing)
        reason = (
            f": no completed run of {lacking}" if lacking else ": no seed in common"
        )
        return NOT_MEASURED, f"Not measured{reason}."
    size = minus(with_interval(interval.mean, interval.half_width))
    if interval.n == 1:
        return ONE_SEED, (
            f"One seed gives I = {size} and no scatter: nothing can be said about "
            "whether the gaps differ. Run at least two more seeds."
        )
    seeds = f"{count(interval.n, 'seed')}: I = {size}"
    if found.sign == 0:
        if contrast.margin and _is_within(interval, contrast.margin):
            return NONE_BEYOND, (
                f"No interaction beyond the registered margin of {contrast.margin:g} "
                f"({seeds})."
            )
        return TOO_FEW, f"Too few seeds to say ({seeds}). {_how_many(found)}"
    supports = [
        name if other.sign else f"{name}, where the interval includes 0"
        for name, other in (("at matched loss", matched), ("in steps", log_steps))
        if other.interval.n and other.interval.mean * found.sign > 0
    ]
    if not supports:
        return NOT_CLAIMED, (
            f"The final gaps differ ({seeds}), but neither the gap at matched loss nor "
            "the gap in steps agrees in sign: they differ because the baselines are at "
            "different points of their curves. No interaction is claimed."
        )
    also = " and ".join(supports)
    wanted = {">": 1, "<": -1}.get(contrast.direction)
    if wanted is not None and wanted != found.sign:
        return OPPOSITE, (
            f"An interaction, but of the sign opposite to the registered one ({seeds}; "
            f"the same sign {also})."
        )
    return INTERACTION, f"An interaction ({seeds}; the same sign {also})."


def outcome(prediction: Contrast, found) -> tuple[str, str]:
    """Whether a prediction held: (status, why)."""
    interval = found.interval
    if interval.n == 0:
        lacking = ", ".join(found.missing)
        return NOT_MEASURED, f"no run of {lacking}" if lacking else "no values"
    if interval.n == 1:
        return UNDECIDED, "one seed has no interval"
    if prediction.direction == "=":
        if _is_within(interval, prediction.margin):
            return HELD, f"interval within ±{prediction.margin:g}"
        beyond = min(abs(interval.low), abs(interval.high)) > prediction.margin
        if found.sign and beyond:
            return DID_NOT, f"interval beyond ±{prediction.margin:g}"
        return UNDECIDED, f"interval neither within nor beyond ±{prediction.margin:g}"
    if found.sign == 0:
        return UNDECIDED, f"interval includes 0. {_how_many(found)}"
    wanted = {">": 1, "<": -1}.get(prediction.direction, found.sign)
    return (HELD, "") if found.sign == wanted else (DID_NOT, "the other sign")


def _is_within(interval, margin: float) -> bool:
    return -margin <= interval.low and interval.high <= margin


def _how_many(found) -> str:
    smallest = f"these seeds find {number(found.smallest, 2)} with 80 % power"
    needed = found.seeds_for_80
    if needed is None:
        return f"An effect of this size cannot be settled by seeds; {smallest}."
    more = max(1, needed - found.interval.n)
    return f"{more} more would settle an effect of this size; {smallest}."
