"""Learned absolute positions."""

import jax
from flax import nnx

from blocks.checks import check_sizes
from blocks.inits.normal import Normal
from blocks.positions.place import Place


class LearnedPositions(nnx.Module):
    """x[token at position p] + table[p].

    Computed in the dtype of `x`. A sequence must not be longer than the table.

    Parameters (float32), role in brackets:
        table  [max_len, d_model]  init.embedding  [position]

    Source: GPT-2, BERT; transformers 5.24.0 modeling_gpt2.py (wpe).
    """

    traced = ()

    @staticmethod
    def check(*, max_len: int) -> None:
        """Raises ValueError for a table without rows."""
        check_sizes(max_len=max_len)

    def __init__(self, d_model: int, *, max_len: int, init=None, rngs: nnx.Rngs):
        """Args:
            d_model: width of the embedding.
            max_len: longest sequence.
            init: has embedding(key, shape); None is N(0, 0.02^2).
            rngs: gives the key.

        Raises:
            ValueError: `max_len` is not positive.
        """
        self.check(max_len=max_len)
        init = Normal() if init is None else init
        table = init.embedding(rngs.params(), (max_len, d_model))
        self.table = nnx.Param(table, role="position")

    def __call__(
        self, x: jax.Array, shape: tuple[int, int], place: Place | None = None
    ) -> jax.Array:
        """Adds to [batch * seq, d_model], in the dtype of `x`.

        Raises:
            ValueError: `x` has another width or number of tokens, or `seq` is too long.
        """
        batch, seq = shape
        max_len, d_model = self.table.shape
        if x.shape != (batch * seq, d_model):
            raise ValueError(f"expected {(batch * seq, d_model)}, got shape {x.shape}")
        longest = seq if place is None else place.length
        if longest > max_len:
            raise ValueError(f"expected at most {max_len} tokens, got {longest}")
        if place is None:
            table = self.table[:seq]
        else:
            table = jax.lax.dynamic_slice_in_dim(self.table[...], place.start, seq)
        table = table.astype(x.dtype)
        return (x.reshape(batch, seq, d_model) + table).reshape(x.shape)
