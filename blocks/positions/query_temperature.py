"""Queries that grow with the position."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from blocks.checks import check_finite, check_sizes
from blocks.positions.place import Place, rows


class QueryTemperature(nnx.Module):
    """Sharpens attention over long contexts, in layers without rotation.

        q[p] * (1 + strength * ln(1 + floor((p + 1) / period)))

    Positions p are 0 .. seq - 1; the first `period` - 1 tokens are left alone, and so
    are keys. The factor is taken in float64 on the host, the product in float32 or
    wider. No parameters.

    Source: Llama 4, transformers 5.24.0 modeling_llama4.py (attn_scale, floor_scale).
    """

    traced = ()

    @staticmethod
    def check(*, strength: float = 0.1, period: int = 8192) -> None:
        """Raises ValueError for values that make no factor."""
        check_finite(strength=strength)
        check_sizes(period=period)

    def __init__(self, d_head: int, *, strength: float = 0.1, period: int = 8192):
        """Args:
        d_head: width of a head.
        strength: growth per unit of the logarithm.
        period: tokens between steps of the factor.
        """
        self.check(strength=strength, period=period)
        self.d_head = d_head
        self.strength = strength
        self.period = period

    def __call__(
        self, q: jax.Array, k: jax.Array, place: Place | None = None
    ) -> tuple[jax.Array, jax.Array]:
        """Queries and keys [batch, heads, seq, d_head], each in its dtype."""
        if q.shape[-1] != self.d_head:
            raise ValueError(f"expected last axis {self.d_head}, got shape {q.shape}")
        wide = jnp.promote_types(q.dtype, jnp.float32)
        factor = rows(self._factors, q.shape[-2], place, wide)
        return (q.astype(wide) * factor).astype(q.dtype), k

    def _factors(self, seq: int) -> np.ndarray:
        """[seq, 1], float64."""
        step = np.floor((np.arange(seq) + 1) / self.period)
        return (1 + self.strength * np.log1p(step))[:, None]
