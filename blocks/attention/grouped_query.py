"""Multi-head, grouped-query and multi-query softmax attention."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from blocks.linear import Linear


class GroupedQueryAttention(nnx.Module):
    """Softmax attention in which groups of query heads share keys and values.

        q, k, v = split into heads of (q(x), k(x), v(x))
        q, k    = positions(q_norm(q), k_norm(k))
        y       = o(inner_norm(heads of softmax(q k^T / sqrt(d_head) [+ mask]) v))

    Query head j reads key/value head j // (n_heads / n_kv_heads): n_kv_heads =
    n_heads is multi-head attention, 1 is multi-query. The mask of causal attention
    lets token i see tokens 0 .. i of its own sequence.

    Linear maps and the product with v are in the dtype of `x`. Scores and softmax are
    in float32, or the dtype of `x` where that is wider; weights are rounded to the
    dtype of `x` before they meet v.

    Sub-modules:
        q           Linear [d_model, n_heads * d_head]      use "query"
        k, v        Linear [d_model, n_kv_heads * d_head]   use "key", "value"
        o           Linear [n_heads * d_head, d_model]      use "output"
        q_norm, k_norm  qk_norm(d_head), or None; each shared by its heads, before
                    positions (Qwen3)
        positions   positions(d_head), or None
        inner_norm  inner_norm(n_heads * d_head), or None

    Source: arXiv 1706.03762 section 3.2, arXiv 2305.13245; transformers 5.24.0
    modeling_llama.py and modeling_qwen3.py.
    """

    traced = ()

    @staticmethod
    def check(
        *,
        d_model: int | None = None,
        n_heads: int | None = None,
        n_kv_heads: int | None = None,
        d_head: int | None = None,
        causal: bool = True,
        bias: bool = False,
    ) -> None:
        """Raises ValueError for sizes that do not divide; None is not known yet."""
        sizes = {"n_heads": n_heads, "n_kv_heads": n_kv_heads, "d_head": d_head}
        for name, size in sizes.items():
            if size is not None and size < 1:
                raise ValueError(f"{name} must be positive, got {size}")
        if n_heads is None:
            return
        if n_kv_heads is not None and n_heads % n_kv_heads:
            raise ValueError(
                "n_heads must be a multiple of n_kv_heads, "
                f"got n_heads={n_heads} and n_kv_heads={n_kv_heads}"
            )
        if d_head is None and d_model is not None and d_model % n_heads:
            raise ValueError(
                "d_model must be a multiple of n_heads unless d_head is given, "
                f"got d_model={d_model} and n_heads={n_heads}"
            )

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        *,
        n_kv_heads: int | None = None,
        d_head: int | None = None,
        causal: bool = True,
        positions: Callable | None = None,
        qk_norm: Callable | None = None,
        bias: bool = False,
        inner_norm: Callable | None = None,
        linear: Callable = Linear,
        rngs: nnx.Rngs,
    ):
        """Args:
            d_model: width of the residual stream.
            n_heads: query heads.
            n_kv_heads: key/value heads; None is n_heads.
            d_head: width of a head; None is d_model // n_heads.
            causal: a token sees no later token.
            positions: positions(d_head) maps (q, k) to (q, k), all
                [batch, heads, seq, d_head].
            qk_norm: qk_norm(d_head, rngs=rngs) makes a normalizer.
            bias: all four linear maps learn an offset.
            inner_norm: inner_norm(n_heads * d_head, rngs=rngs) makes a normalizer.
            linear: linear(d_in, d_out, use=..., bias=..., rngs=...) makes a map.
            rngs: gives the keys.

        Raises:
            ValueError: heads do not divide.
        """
        self.check(
            d_model=d_model, n_heads=n_heads, n_kv_heads=n_kv_heads, d_head=d_head
        )
        self.n_heads = n_heads
        self.n_kv_heads = n_heads if n_kv_heads is None else n_kv_heads
        self.d_head = d_model // n_heads if d_head is None else d_head
        self.causal = causal
        d_q, d_kv = self.n_heads * self.d_head, self.n_kv_heads * self.d_head

        self.q = linear(d_model, d_q, use="query", bias=bias, rngs=rngs)
        self.k = linear(d_model, d_kv, use="key", bias=bias, rngs=rngs)
        self.v = linear(d_model, d_kv, use="value", bias=bias, rngs=rngs)
        self.o = linear(d_q, d_model, use="output", bias=bias, rngs=rngs)
        self.q_norm = None if qk_norm is None else qk_norm(self.d_head, rngs=rngs)
        self.k_norm = None if qk_norm is None else qk_norm(self.d_head, rngs=rngs)
        self.positions = None if positions is None else positions(self.d_head)
        self.inner_norm = None if inner_norm is None else inner_norm(d_q, rngs=rngs)

    def __call__(self, x: jax.Array, shape: tuple[int, int]) -> jax.Array:
        """Maps [batch * seq, d_model] to the same shape in the dtype of `x`.

        Args:
            x: tokens, sequence after sequence.
            shape: (batch, seq).

        Raises:
            ValueError: `shape` does not account for the tokens of `x`.
        """
        batch, seq = shape
        if x.shape[0] != batch * seq:
            raise ValueError(
                f"expected batch * seq = {batch} * {seq} tokens, got shape {x.shape}"
            )
        q = self._heads(self.q(x), self.n_heads, shape)
        k = self._heads(self.k(x), self.n_kv_heads, shape)
        v = self._heads(self.v(x), self.n_kv_heads, shape)
        if self.q_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        if self.positions is not None:
            q, k = self.positions(q, k)
        y = grouped_attention(q, k, v, causal=self.causal)
        y = y.transpose(0, 2, 1, 3).reshape(batch * seq, self.n_heads * self.d_head)
        if self.inner_norm is not None:
            y = self.inner_norm(y)
        return self.o(y)

    def _heads(self, x: jax.Array, n_heads: int, shape: tuple[int, int]) -> jax.Array:
        """[tokens, n_heads * d_head] -> [batch, n_heads, seq, d_head]."""
        return x.reshape(*shape, n_heads, self.d_head).transpose(0, 2, 1, 3)


def grouped_attention(
    q: jax.Array, k: jax.Array, v: jax.Array, *, causal: bool
) -> jax.Array:
    """Attends: q [batch, n_heads, seq, d_head], k and v with n_kv_heads.

    Explicit [batch, head, token, feature] products: on CPU the einsum form of the
    same thing (and jax.nn.dot_product_attention) is about a quarter slower.
    """
    batch, n_heads, seq, d_head = q.shape
    n_kv_heads = k.shape[1]
    # The queries of a group are stacked along the token axis, so that its keys and
    # values enter one product as they are and are never repeated.
    q = q.reshape(batch, n_kv_heads, -1, d_head)
    wide = jnp.promote_types(q.dtype, jnp.float32)
    scores = jnp.matmul(q, k.swapaxes(-1, -2), preferred_element_type=wide)
    scores = scores.reshape(batch, n_heads, seq, seq) * d_head**-0.5
    weights = attention_weights(scores, causal=causal).astype(v.dtype)
    y = weights.reshape(batch, n_kv_heads, -1, seq) @ v
    return y.reshape(batch, n_heads, seq, d_head)


def attention_weights(scores: jax.Array, *, causal: bool) -> jax.Array:
    """Softmax over the last axis of scores [..., seq, seq], float32 or wider.

    A masked score is the most negative finite number: its weight and its gradient
    are exactly zero, and no infinity enters a difference.
    """
    scores = scores.astype(jnp.promote_types(scores.dtype, jnp.float32))
    if causal:
        seq = scores.shape[-1]
        seen = jnp.arange(seq)[:, None] >= jnp.arange(seq)
        scores = jnp.where(seen, scores, jnp.finfo(scores.dtype).min)
    return jax.nn.softmax(scores, axis=-1)
