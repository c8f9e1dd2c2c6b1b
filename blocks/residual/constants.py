"""Constants that DeepNorm and Sub-LN derive from the depth of an architecture."""

import math

import jax.numpy as jnp

from blocks.checks import check_choice, check_sizes
from blocks.site import Site

SIDES = (
    "only",  # an encoder alone, or a decoder alone
    "encoder",  # of an encoder and a decoder
    "decoder",
)


def check_side(side: str, n_other_layers: int | None) -> None:
    """Raises ValueError for an unknown side, or a depth that the other cannot have."""
    check_choice("side", side, SIDES)
    check_sizes(n_other_layers=n_other_layers)


def deepnorm(n, side: str = "only", n_other=None) -> tuple:
    """alpha and beta of a stack of `n` blocks, a number or traced.

        only       (2 n)^(1/4)                 (8 n)^(-1/4)
        encoder    0.81 (n^4 m)^(1/16)         0.87 (n^4 m)^(-1/16)
        decoder    (3 n)^(1/4)                 (12 n)^(-1/4)

    n_other: m, the depth of the other side; None is `n`.
    """
    if side == "encoder":
        m = n if n_other is None else n_other
        root = n**0.25 * m ** (1 / 16)  # n^4 m leaves int32
        return 0.81 * root, 0.87 / root
    a, b = (2, 8) if side == "only" else (3, 12)
    return (a * n) ** 0.25, (b * n) ** -0.25


def sub_ln(n, side: str = "only", n_other=None):
    """gamma of a stack of `n` blocks, a number or traced.

    only       sqrt(ln(2 n))
    encoder    sqrt(ln(3 m) ln(2 n) / 3)
    decoder    sqrt(ln(3 n))
    """
    if side == "encoder":
        m = n if n_other is None else n_other
        return (_log(3 * m) * _log(2 * n) / 3) ** 0.5
    return _log((2 if side == "only" else 3) * n) ** 0.5


def _log(n):
    return math.log(n) if isinstance(n, int) else jnp.log(n)


def is_on_the_value_path(use: str, site: Site) -> bool:
    """v and o of attention, and every matrix of the feed-forward.

    Left out are q and k, and maps inside attention that gate its output.
    """
    return use in ("value", "output") or (use == "hidden" and site.name == "ffn")
