"""Rotary position embedding."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx


class Rope(nnx.Module):
    """Rotates pairs of features by an angle proportional to the position.

        angle[p, i] = p * base**(-2 i / d_head)      i = 0 .. d_head / 2 - 1
        y[i]              = x[i] cos - x[i + d_head / 2] sin
        y[i + d_head / 2] = x[i + d_head / 2] cos + x[i] sin

    Positions p are 0 .. seq - 1, angles in radians. Feature i is paired with
    i + d_head / 2 (Llama, GPT-NeoX: "rotate half"), not with its neighbour, so
    weights of the interleaved layout need their features permuted. The product of a
    rotated query and a rotated key depends on the difference of positions only.

    Angles, cosines and sines are taken in float64 on the host; they and the rotation
    are float32, or the dtype of the input where that is wider, and the result is
    rounded to the dtype of the input once. No parameters.

    Source: arXiv 2104.09864 section 3.4.2; transformers 5.24.0 modeling_llama.py.
    """

    traced = ()

    @staticmethod
    def check(*, base: float = 10000.0) -> None:
        """Raises ValueError for a base that gives no decreasing frequencies."""
        if not (math.isfinite(base) and base > 1):
            raise ValueError(f"base must be finite and above 1, got {base}")

    def __init__(self, d_head: int, *, base: float = 10000.0):
        """Args:
            d_head: width of a head, even.
            base: 2 pi * base bounds the longest period, in tokens.

        Raises:
            ValueError: `d_head` is odd, or `base` is not above 1.
        """
        self.check(base=base)
        if d_head < 2 or d_head % 2:
            raise ValueError(f"d_head must be even and positive, got {d_head}")
        self.d_head = d_head
        self.base = base

    def __call__(self, q: jax.Array, k: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Rotates queries and keys [batch, heads, seq, d_head], each in its dtype.

        `q` and `k` may have different numbers of heads.
        """
        return self._rotate(q), self._rotate(k)

    def _rotate(self, x: jax.Array) -> jax.Array:
        if x.shape[-1] != self.d_head:
            raise ValueError(f"expected last axis {self.d_head}, got shape {x.shape}")
        half = self.d_head // 2
        frequency = float(self.base) ** (-np.arange(half) / half)
        angle = np.arange(x.shape[-2])[:, None] * frequency  # [seq, d_head / 2]
        wide = jnp.promote_types(x.dtype, jnp.float32)
        cos, sin = jnp.asarray(np.cos(angle), wide), jnp.asarray(np.sin(angle), wide)
        first, second = x[..., :half].astype(wide), x[..., half:].astype(wide)
        y = [first * cos - second * sin, second * cos + first * sin]
        return jnp.concatenate(y, axis=-1).astype(x.dtype)
