"""Value residual: every block sees the values of the first one."""

import jax
import jax.numpy as jnp
from flax import nnx

from blocks.attention.grouped_query import GroupedQueryAttention
from blocks.attention.heads import join_heads, split_heads
from blocks.cache import Cache
from blocks.checks import check_finite
from blocks.keywords import with_keywords_of


class ValueResidualAttention(GroupedQueryAttention):
    """Attention whose values are mixed with those of block 0.

        v = first * v_0 + own * v_l      for every block l but the first

    v_l are the values as projected, before they are split into heads: all blocks need
    the same n_kv_heads and d_head. (1/2, 1/2) fixed is the paper's ResFormer; 1 and 0
    fixed is its SVFormer, in which later value maps are not used. The mix is in float32
    or wider, and rounded once.

    Parameters (float32) beside those of the parent, role in brackets, where is_learned:
        first  [1]  init `first_init`  [scale]
        own    [1]  init `own_init`    [scale]

    Source: arXiv 2410.17897 section 3; Zcchill/Value-Residual-Learning.
    """

    @staticmethod
    @with_keywords_of(GroupedQueryAttention.check)
    def check(*, first_init: float = 0.5, own_init: float = 0.5, **keywords) -> None:
        GroupedQueryAttention.check(**keywords)
        check_finite(first_init=first_init, own_init=own_init)

    @with_keywords_of(GroupedQueryAttention.__init__)
    def __init__(
        self,
        d_model: int,
        n_heads: int,
        *,
        is_learned: bool = True,
        first_init: float = 0.5,
        own_init: float = 0.5,
        rngs: nnx.Rngs,
        **keywords,
    ):
        """Args:
        is_learned: the two factors are parameters, per block; else constants.
        first_init, own_init: of the values of block 0, and of the block's own.
        Others as in GroupedQueryAttention.
        """
        super().__init__(d_model, n_heads, rngs=rngs, **keywords)

        def factor(value):
            if not is_learned:
                return value
            return nnx.Param(jnp.full((1,), value, jnp.float32), role="scale")

        self.first = factor(first_init)
        self.own = factor(own_init)

    def first_memory(self, n_tokens: int, dtype) -> jax.Array:
        """Room for the values of block 0: [tokens, n_kv_heads * d_head]."""
        return jnp.zeros((n_tokens, self.n_kv_heads * self.d_head), dtype)

    def remember(
        self,
        x: jax.Array,
        shape: tuple[int, int],
        memory,
        layer,
        cache: Cache | None = None,
    ):
        """Maps [tokens, d_model] to the same; gives the values of block 0 on.

        Args:
            shape: (batch, seq).
            memory: values of block 0, which itself writes them.
            layer: number of the block, from 0.
            cache: keys and mixed values of the tokens before, where there are some.

        Raises:
            ValueError: the first block has another attention, which keeps no values.
        """
        if memory is None:
            raise ValueError(
                "value residuals need the values of the first block, "
                "whose attention keeps none"
            )
        place = None if cache is None else cache.place
        q, k, v = self.heads(x, shape, place)
        v = join_heads(v)
        is_first = layer == 0
        memory = jnp.where(is_first, v, memory)
        wide = jnp.promote_types(v.dtype, jnp.float32)
        mixed = self._value(self.first, wide) * memory.astype(wide)
        mixed = mixed + self._value(self.own, wide) * v.astype(wide)
        v = jnp.where(is_first, v, mixed.astype(v.dtype))
        v = split_heads(v, self.d_head, shape)
        return self.output(x, q, k, v, cache), memory

    @staticmethod
    def _value(factor, dtype) -> jax.Array:
        value = factor[...] if isinstance(factor, nnx.Variable) else factor
        return jnp.asarray(value, dtype)
