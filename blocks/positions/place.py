"""Which positions the tokens at hand have."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np


@dataclasses.dataclass(frozen=True)
class Place:
    """Tokens that go on behind earlier ones: positions start, start + 1, ...

    start: of the first of the tokens; may be traced.
    length: no position reaches it.
    """

    start: int | jax.Array
    length: int


def rows(
    table: Callable[[int], np.ndarray], seq: int, place: Place | None, dtype
) -> jax.Array:
    """What `seq` tokens at `place` have of table(n) [n, ...], rows 0 .. n - 1.

    None is the start of a sequence. Taken on the host, rounded to `dtype` once.
    """
    if place is None:
        return jnp.asarray(table(seq), dtype)
    whole = jnp.asarray(table(place.length), dtype)
    return jax.lax.dynamic_slice_in_dim(whole, place.start, seq)
