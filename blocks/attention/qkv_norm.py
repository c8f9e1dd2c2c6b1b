"""Attention that normalizes queries, keys and values."""

from collections.abc import Callable

import jax
from flax import nnx

from blocks.attention.grouped_query import GroupedQueryAttention
from blocks.keywords import with_keywords_of
from blocks.norms.at_site import make_norm
from blocks.positions.place import Place


class QKVNormAttention(GroupedQueryAttention):
    """Softmax attention with a norm on every head of v as well as of q and k.

    The norm of v is of the kind given as qk_norm, over one head; its gain is shared by
    the heads. Everything else is as in GroupedQueryAttention.

    Source: arXiv 2503.04598 section 3 (HybridNorm).
    """

    needs_qk_norm = True

    @with_keywords_of(GroupedQueryAttention.__init__)
    def __init__(
        self,
        d_model: int,
        n_heads: int,
        *,
        qk_norm: Callable | None = None,
        rngs: nnx.Rngs,
        **keywords,
    ):
        """Args: as in GroupedQueryAttention; qk_norm is needed.

        Raises:
            ValueError: there is no qk_norm.
        """
        if qk_norm is None:
            raise ValueError("qk_norm: expected a norm for queries, keys and values")
        super().__init__(d_model, n_heads, qk_norm=qk_norm, rngs=rngs, **keywords)
        self.v_norm = make_norm(qk_norm, self.d_head, "qk", rngs=rngs)

    def heads(
        self, x: jax.Array, shape: tuple[int, int], place: Place | None = None
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """q, k, v [batch, heads, seq, d_head], all normalized."""
        q, k, v = super().heads(x, shape, place)
        return q, k, self.v_norm(v)
