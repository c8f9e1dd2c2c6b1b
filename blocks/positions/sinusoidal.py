"""Sinusoidal absolute positions."""

import math

import jax
import numpy as np
from flax import nnx

from blocks.positions.place import Place, rows


class SinusoidalPositions(nnx.Module):
    """x[token at position p] + wave[p].

        wave[p, 2 i]     = sin(p * base**(-2 i / d_model))
        wave[p, 2 i + 1] = cos(p * base**(-2 i / d_model))

    The waves are taken in float64 on the host and rounded to the dtype of `x`. Entries
    are up to 1: the paper multiplies the embedding by sqrt(d_model) before. No
    parameters, and no longest sequence.

    Source: arXiv 1706.03762 section 3.5.
    """

    traced = ()

    @staticmethod
    def check(*, base: float = 10000.0) -> None:
        """Raises ValueError for a base that gives no decreasing frequencies."""
        if not (math.isfinite(base) and base > 1):
            raise ValueError(f"base must be finite and above 1, got {base}")

    def __init__(
        self,
        d_model: int,
        *,
        base: float = 10000.0,
        init=None,
        rngs: nnx.Rngs,
    ):
        """Args:
            d_model: width of the embedding, even.
            base: 2 pi * base bounds the longest period, in tokens.
            init, rngs: unused; positions that are learned need them.

        Raises:
            ValueError: `d_model` is odd, or `base` is not above 1.
        """
        del init, rngs
        self.check(base=base)
        if d_model < 2 or d_model % 2:
            raise ValueError(f"d_model must be even and positive, got {d_model}")
        self.d_model = d_model
        self.base = base

    def __call__(
        self, x: jax.Array, shape: tuple[int, int], place: Place | None = None
    ) -> jax.Array:
        """Adds to [batch * seq, d_model], in the dtype of `x`.

        Raises:
            ValueError: `x` has another width or number of tokens.
        """
        batch, seq = shape
        if x.shape != (batch * seq, self.d_model):
            raise ValueError(
                f"expected {(batch * seq, self.d_model)}, got shape {x.shape}"
            )
        wave = rows(self._waves, seq, place, x.dtype)
        return (x.reshape(batch, seq, self.d_model) + wave).reshape(x.shape)

    def _waves(self, seq: int) -> np.ndarray:
        """[seq, d_model], float64."""
        half = self.d_model // 2
        angle = np.arange(seq)[:, None] * float(self.base) ** (-np.arange(half) / half)
        wave = np.stack([np.sin(angle), np.cos(angle)], axis=-1)
        return wave.reshape(seq, self.d_model)
