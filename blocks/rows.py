"""Measurements of several places, of which some may lack what others have."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

Row = dict[str, jax.Array]


def stacked(rows: Sequence[Row]) -> Row:
    """One array per name with a leading axis over `rows`; NaN where a row lacks it."""
    return {
        name: jnp.stack(
            [row[name] if name in row else jnp.full_like(x, jnp.nan) for row in rows]
        )
        for name, x in _known(rows).items()
    }


def joined(rows: Sequence[Row], lengths: Sequence[int]) -> Row:
    """Arrays [length, ...] of each row end to end; NaN where a row lacks one."""
    if len(rows) == 1:
        return rows[0]
    known = _known(rows)

    def array(row, length, name):
        if name in row:
            return row[name]
        like = known[name]
        return jnp.full((length, *like.shape[1:]), jnp.nan, like.dtype)

    parts = list(zip(rows, lengths, strict=True))
    return {
        name: jnp.concatenate([array(row, length, name) for row, length in parts])
        for name in known
    }


def _known(rows: Sequence[Row]) -> Row:
    """Name -> the array of the first row that has it."""
    return {name: x for row in reversed(rows) for name, x in row.items()}
