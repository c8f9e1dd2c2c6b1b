"""Attention that sees everything, but for what the model says about the scores."""

import contextlib
import contextvars
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
from flax import nnx

from blocks.attention.grouped_query import GroupedQueryAttention
from blocks.attention.heads import join_heads
from blocks.linear import Linear

_ADDED: contextvars.ContextVar = contextvars.ContextVar("added_to_scores", default=None)


@contextlib.contextmanager
def adding_to_scores(bias: jax.Array | None) -> Iterator[None]:
    """`bias` is added to the scores of every `BidirectionalAttention` traced inside.

    bias: what [batch, n_heads, seq, seq] broadcasts from: relative positions that all
        layers share, the lowest number where a key is padding; or None.
    """
    token = _ADDED.set(bias)
    try:
        yield
    finally:
        _ADDED.reset(token)


class BidirectionalAttention(GroupedQueryAttention):
    """`GroupedQueryAttention` without a mask of its own.

        y = o(inner_norm(heads of softmax(scale q k^T + added) v))

    `added` is what the model says (`adding_to_scores`); it is no sub-module, since T5
    has one table for all layers. Numerics and parameters as in the parent.

    Source: transformers 5.24.0 modeling_bert.py, modeling_t5.py.
    """

    traced = ()

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        *,
        n_kv_heads: int | None = None,
        d_head: int | None = None,
        scale: float | None = None,
        positions: Callable | None = None,
        qk_norm: Callable | None = None,
        bias: bool = False,
        output_bias: bool | None = None,
        inner_norm: Callable | None = None,
        linear: Callable = Linear,
        rngs: nnx.Rngs,
    ):
        """Args: as in `GroupedQueryAttention`."""
        super().__init__(
            d_model,
            n_heads,
            n_kv_heads=n_kv_heads,
            d_head=d_head,
            causal=False,
            scale=scale,
            positions=positions,
            qk_norm=qk_norm,
            bias=bias,
            output_bias=output_bias,
            inner_norm=inner_norm,
            implementation="explicit",
            linear=linear,
            rngs=rngs,
        )

    def output(
        self, x: jax.Array, q: jax.Array, k: jax.Array, v: jax.Array, cache=None
    ) -> jax.Array:
        """From heads to [tokens, d_model]."""
        del x, cache
        wide = jnp.promote_types(q.dtype, jnp.float32)
        scale = self.d_head**-0.5 if self.scale is None else self.scale
        k, v = (jnp.repeat(y, self.n_heads // self.n_kv_heads, axis=1) for y in (k, v))
        scores = scale * jnp.einsum(
            "bhqd,bhkd->bhqk", q, k, preferred_element_type=wide
        )
        added = _ADDED.get()
        if added is not None:
            scores = scores + added.astype(wide)
        weights = jax.nn.softmax(scores, axis=-1).astype(v.dtype)
        y = join_heads(jnp.einsum("bhqk,bhkd->bhqd", weights, v))
        return self.o(y if self.inner_norm is None else self.inner_norm(y))
