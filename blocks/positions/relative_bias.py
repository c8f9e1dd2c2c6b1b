"""Relative positions as numbers that are added to attention scores."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx


class RelativeBias(nnx.Module):
    """bias[head, i, j] = table[bucket(j - i), head], for tokens that see both ways.

    The first n_buckets / 4 distances to each side have a bucket each; farther ones share
    buckets that widen like logarithms up to `max_distance`, and all beyond have the last.

    Parameters (float32), role in brackets:
        table  [n_buckets, n_heads]  init.embedding  [position]

    Source: arXiv 1910.10683 section 2.1; transformers 5.24.0 modeling_t5.py
    (_relative_position_bucket, bidirectional).
    """

    @staticmethod
    def check(*, n_buckets: int = 32, max_distance: int = 128) -> None:
        """Raises ValueError for buckets that no distance can have."""
        if n_buckets < 4 or n_buckets % 4:
            raise ValueError(f"n_buckets must be a multiple of 4, got {n_buckets}")
        if max_distance <= n_buckets // 4:
            raise ValueError(
                f"max_distance must be above n_buckets / 4 = {n_buckets // 4}, "
                f"got {max_distance}"
            )

    def __init__(
        self,
        n_heads: int,
        *,
        n_buckets: int = 32,
        max_distance: int = 128,
        init,
        rngs: nnx.Rngs,
    ):
        self.check(n_buckets=n_buckets, max_distance=max_distance)
        self.max_distance = max_distance
        drawn = init.embedding(rngs.params(), (n_buckets, n_heads))
        self.table = nnx.Param(drawn, role="position")

    def __call__(self, seq: int) -> jax.Array:
        """[1, n_heads, seq, seq]: query i, key j."""
        bucket = buckets(seq, len(self.table), self.max_distance)
        return jnp.moveaxis(self.table[...][bucket], -1, 0)[None]


def buckets(seq: int, n_buckets: int, max_distance: int) -> np.ndarray:
    """Bucket of key j seen from query i [seq, seq]; in float32 as the source."""
    relative = np.arange(seq)[None, :] - np.arange(seq)[:, None]
    half = n_buckets // 2
    exact = half // 2
    distance = np.abs(relative)
    far = np.log(np.maximum(distance, 1).astype(np.float32) / np.float32(exact))
    far = far / np.float32(math.log(max_distance / exact)) * np.float32(half - exact)
    shared = np.minimum(exact + far.astype(np.int64), half - 1)
    return half * (relative > 0) + np.where(distance < exact, distance, shared)
