"""Heads: their sizes, and tokens as heads and back."""

from collections.abc import Callable

import jax

from blocks.checks import check_sizes
from blocks.positions.place import Place


def check_heads(
    d_model: int | None,
    n_heads: int | None,
    n_kv_heads: int | None,
    d_head: int | None,
) -> None:
    """Raises ValueError for sizes that do not divide; None is not known yet."""
    sizes = {"n_heads": n_heads, "n_kv_heads": n_kv_heads, "d_head": d_head}
    check_sizes(**sizes)
    if n_heads is None:
        return
    if n_kv_heads is not None and n_heads % n_kv_heads:
        raise ValueError(
            "n_heads must be a multiple of n_kv_heads, "
            f"got n_heads={n_heads} and n_kv_heads={n_kv_heads}"
        )
    if d_head is None and d_model is not None and d_model % n_heads:
        raise ValueError(
            "d_model must be a multiple of n_heads unless d_head is given, "
            f"got d_model={d_model} and n_heads={n_heads}"
        )


def split_heads(x: jax.Array, d_head: int, shape: tuple[int, int]) -> jax.Array:
    """[batch * seq, n_heads * d_head] -> [batch, n_heads, seq, d_head].

    Raises:
        ValueError: `shape` (batch, seq) does not account for the tokens of `x`.
    """
    batch, seq = shape
    if x.shape[0] != batch * seq:
        raise ValueError(
            f"expected batch * seq = {batch} * {seq} tokens, got shape {x.shape}"
        )
    return x.reshape(batch, seq, -1, d_head).transpose(0, 2, 1, 3)


def join_heads(y: jax.Array) -> jax.Array:
    """[batch, n_heads, seq, d_head] -> [batch * seq, n_heads * d_head]."""
    batch, _, seq, _ = y.shape
    return y.transpose(0, 2, 1, 3).reshape(batch * seq, -1)


def turned(
    positions: Callable | None, q: jax.Array, k: jax.Array, place: Place | None
) -> tuple[jax.Array, jax.Array]:
    """positions(q, k), and as they are where there are none.

    place: which positions the tokens have; None is from 0.
    """
    if positions is None:
        return q, k
    return positions(q, k) if place is None else positions(q, k, place)
