"""Which few entries of a compressed past a query looks at."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from blocks.attention.heads import split_heads
from blocks.checks import check_sizes
from blocks.linear import Linear


class Indexer(nnx.Module):
    """The top_k entries by a small attention of its own.

        q      = turn(q(latent))                 n_heads of d_head
        k      = turn(compressor(x))             entries of d_head
        score  = sum over heads of weigh(x)_h relu(q_h . k) / sqrt(d_head n_heads)

    Queries, keys and weights in the dtype of `x`, scores in float32 or wider. A choice
    has no gradient: these parameters learn from a loss of their own, which is none of
    a language model, and here they stay what they are but for weight decay.

    Sub-modules:
        q           Linear [d_latent, n_heads * d_head]  use "query"
        weigh       Linear [d_model, n_heads]            use "hidden"
        compressor  compressor(d_model, d_head)

    Source: DeepSeek-V3.2 and V4 (lightning indexer); transformers 5.24.0
    modeling_deepseek_v4.py.
    """

    traced = ()

    @staticmethod
    def check(*, n_heads: int = 64, d_head: int = 128, top_k: int = 512) -> None:
        """Raises ValueError for sizes below 1."""
        check_sizes(n_heads=n_heads, d_head=d_head, top_k=top_k)

    def __init__(
        self,
        d_model: int,
        d_latent: int,
        compressor: Callable,
        *,
        n_heads: int = 64,
        d_head: int = 128,
        top_k: int = 512,
        linear: Callable = Linear,
        rngs: nnx.Rngs,
    ):
        """Args:
        d_model: width of the tokens.
        d_latent: width of the query's latent.
        compressor: compressor(d_model, d_head, rngs=rngs), that of the attention.
        n_heads, d_head: of this attention.
        top_k: entries that a query keeps.
        linear: linear(d_in, d_out, use=..., bias=..., rngs=...) makes a map.
        rngs: gives the keys.
        """
        self.check(n_heads=n_heads, d_head=d_head, top_k=top_k)
        self.n_heads, self.d_head, self.top_k = n_heads, d_head, top_k
        self.q = linear(d_latent, n_heads * d_head, use="query", bias=False, rngs=rngs)
        self.weigh = linear(d_model, n_heads, use="hidden", bias=False, rngs=rngs)
        self.compressor = compressor(d_model, d_head, rngs=rngs)

    def __call__(
        self,
        x: jax.Array,
        latent: jax.Array,
        shape: tuple[int, int],
        *,
        ready: jax.Array,
        turn: Callable,
    ) -> jax.Array:
        """Which entries each query keeps, [batch, seq, entries].

        Args:
            x, latent: [batch * seq, features].
            shape: (batch, seq).
            ready: [seq, entries], the entries that end before a query.
            turn: turn(q, entries) puts positions on both, [batch, heads, seq or
                entries, d_head].
        """
        x, latent = jax.lax.stop_gradient((x, latent))
        q = split_heads(self.q(latent), self.d_head, shape)
        q, k = turn(q, self.compressor(x, shape)[:, None])
        wide = jnp.promote_types(x.dtype, jnp.float32)
        scores = jnp.einsum("bhtd,bgwd->bhtw", q, k, preferred_element_type=wide)
        weights = split_heads(self.weigh(x), 1, shape).astype(wide)  # [b, h, seq, 1]
        scores = jnp.sum(weights * jax.nn.relu(scores), axis=1)
        scores = scores / (self.d_head * self.n_heads) ** 0.5
        scores = jax.lax.stop_gradient(jnp.where(ready, scores, -jnp.inf))
        top_k = min(self.top_k, scores.shape[-1])
        _, best = jax.lax.top_k(scores, top_k)
        kept = jnp.zeros(scores.shape, bool)
        kept = jnp.put_along_axis(kept, best, True, axis=-1, inplace=False)
        return kept & ready
