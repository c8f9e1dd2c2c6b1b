"""Tiles of [tokens, features] that a kernel works on at a time."""

import dataclasses

import jax
import jax.numpy as jnp


@dataclasses.dataclass(frozen=True)
class TileSizes:
    """Powers of two. Arrays are padded to multiples of `tokens` and `width`; a tile is
    the largest power of two that divides them, up to `most_tokens` and `most_width`.
    """

    tokens: int
    width: int
    most_tokens: int
    most_width: int


# Triton takes powers of two only, and a tile shares the registers of four warps. Tiles
# of a TPU are multiples of (8, 128), in bfloat16 of (16, 128). Not tuned on a device.
TILES = {
    "cuda": TileSizes(16, 16, most_tokens=16, most_width=128),
    "tpu": TileSizes(16, 128, most_tokens=128, most_width=512),
}


def padded(x: jax.Array, axis: int, multiple: int) -> jax.Array:
    """`x` with zeros at the end of an axis, up to a multiple; `x` itself if it is one."""
    missing = -x.shape[axis] % multiple
    if not missing:
        return x
    ends = [(0, missing if i == axis else 0) for i in range(x.ndim)]
    return jnp.pad(x, ends)


def tile(size: int, most: int) -> int:
    """The largest power of two that divides `size`, `most` at most."""
    return min(size & -size, most)
