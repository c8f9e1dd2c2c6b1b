"""Published initial slopes of DyT, by width and site: the rule `alpha_init: auto`."""

from blocks.checks import check_positive

AUTO = "auto"

# Width -> (norm before attention, norm before the feed-forward and final norm). The
# paper found the best slopes to depend on the width and not on the depth.
# 1024, 2048, 4096, 8192: arXiv 2503.10622 table 12 (depths 8 to 64); 5120: table 11
# (LLaMA 13B), whose 7B, 34B and 70B agree with table 12.
LLAMA = {
    1024: (1.0, 1.0),
    2048: (1.0, 0.5),
    4096: (0.8, 0.2),
    5120: (0.6, 0.15),
    8192: (0.2, 0.05),
}
# "both" is the one norm of a parallel block, of which nothing is published: the
# smaller slope saturates in neither branch.
COLUMN = {"attn": 0, "ffn": 1, "final": 1, "both": 1}
ELSEWHERE = 0.5  # the paper's value for everything but language models

# erf(z) is closest to tanh(1.205 z): arXiv 2512.10938 section 7.2.
ERF_PER_TANH = 1.205


def published_alpha(d_model: int, site: str | None) -> float:
    """The slope DyT starts with in a language model.

    Linear in the width between the widths of the tables, constant outside: leaving
    5120 out, a line through its neighbours gives 0.65 and 0.1625 there, a power law
    0.51 and 0.13, and the published values are 0.6 and 0.15.

    Args:
        d_model: width of the norm.
        site: "attn", "ffn", "final" or "both"; any other site is not in the tables and
            gets 0.5, the paper's value for everything but language models.

    Raises:
        ValueError: no site.
    """
    if site is None:
        raise ValueError(
            f"alpha_init={AUTO!r} depends on where the norm sits: expected site=, a "
            f"string such as {', '.join(COLUMN)}, got None"
        )
    if site not in COLUMN:
        return ELSEWHERE
    widths = sorted(LLAMA)
    values = [LLAMA[width][COLUMN[site]] for width in widths]
    if d_model <= widths[0]:
        return values[0]
    for i in range(1, len(widths)):
        if d_model <= widths[i]:
            part = (d_model - widths[i - 1]) / (widths[i] - widths[i - 1])
            return (1 - part) * values[i - 1] + part * values[i]
    return values[-1]


def check_alpha_init(alpha_init: float | str) -> None:
    """Raises ValueError for what is neither a positive finite number nor "auto"."""
    if isinstance(alpha_init, str):
        if alpha_init != AUTO:
            raise ValueError(
                f"alpha_init must be a number or {AUTO!r}, got {alpha_init!r}"
            )
    else:
        check_positive(alpha_init=alpha_init)
