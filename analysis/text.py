"""How numbers are written in tables, figures and on the terminal."""

import math

NOTHING = "n/a"


def number(value: float | None, digits: int = 4) -> str:
    """A value alone, to `digits` significant digits; `n/a` where there is none."""
    if value is None or not math.isfinite(value):
        return NOTHING
    return f"{value:#.{digits}g}".rstrip(".")


def with_interval(mean: float | None, half_width: float | None) -> str:
    """`2.4031 ± 0.0042`: two digits of the half-width decide the decimals of both."""
    if mean is None or not math.isfinite(mean):
        return NOTHING
    if half_width is None or not math.isfinite(half_width):
        return number(mean)
    if half_width == 0:
        return f"{number(mean)} ± 0"
    decimals = 1 - math.floor(math.log10(half_width))
    if not 0 <= decimals <= 8:
        return f"{mean:.3g} ± {half_width:.2g}"
    # Adding 0.0 to the rounded value takes the sign off a zero.
    rounded = round(mean, decimals) + 0.0
    return f"{rounded:.{decimals}f} ± {half_width:.{decimals}f}"


def minus(text: str) -> str:
    """With a minus sign that is as wide as a plus."""
    return text.replace("-", "\N{MINUS SIGN}")


def count(n: int, noun: str) -> str:
    """`1 seed`, `3 seeds`."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"
