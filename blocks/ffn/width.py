"""The inner width of a feed-forward network, where it follows from d_model."""

import math

from blocks.checks import check_positive, check_sizes


def inner_width(d_model: int, d_ff: int | None, ratio: float, multiple_of: int) -> int:
    """d_ff if it is given, else ratio * d_model, rounded up to a multiple.

    The usual rules: 4 d for two matrices; 8/3 d for three, which has the same number
    of parameters (8 d^2; Llama rounds up to a multiple of 256); pi d, to a multiple
    of 64, in jingyaogong/minimind.
    """
    if d_ff is not None:
        return d_ff
    # 2.2 * 50 is 110.00000000000001: a rounding must not cost a whole multiple.
    return multiple_of * math.ceil(ratio * d_model / multiple_of - 1e-9)


def check_width(ratio: float, multiple_of: int) -> None:
    """Raises ValueError for numbers that give no width."""
    check_positive(ratio=ratio)
    check_sizes(multiple_of=multiple_of)
