"""Attention in which one vector of a token is key and value of all heads: DeepSeek-V4."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from blocks.attention.grouped_output import GroupedOutput
from blocks.attention.heads import check_heads, join_heads, split_heads
from blocks.attention.weights import attention_weights, check_weights, visible
from blocks.checks import check_positive, check_sizes
from blocks.linear import Linear
from blocks.looking import note
from blocks.norms.at_site import make_norm


class SharedKeyValueAttention(nnx.Module):
    """Softmax over a window, a compressed past and a sink; keys are the values.

        latent = q_norm(q_down(x))
        q      = turn(head_norm(q_up(latent)))                       per head
        kv     = turn([kv_norm(kv(x)) of a window | compressor(x)])  one head for all
        y      = output(inner_norm(turn back(softmax(scale q kv^T, sink) kv)))

    turn puts positions on the last d_rope features of a head: tokens at their own, an
    entry of the compressor at the first of its window. As values are turned too, what a
    query gathers is turned back by its own position (the transposed map): it depends
    on distances only. Query i sees the last `window` tokens and all entries of windows
    that end at it or before; with an indexer those alone that it keeps.

    Maps and the product with kv are in the dtype of `x`; scores and softmax in float32
    or wider.

    Parameters (float32), role in brackets:
        sinks  [n_heads]  init 0  [sink]

    Sub-modules:
        q_down      Linear [d_model, q_rank]            use "query"
        q_norm      latent_norm(q_rank)
        q_up        Linear [q_rank, n_heads * d_head]   use "query"
        head_norm   head_norm(d_head)
        kv          Linear [d_model, d_head]            use "key"
        kv_norm     latent_norm(d_head)
        compressor  compressor(d_model, d_head, latent_norm), or None
        indexer     indexer(d_model, q_rank, the compressor's maker), or None
        output      GroupedOutput from n_heads * d_head by n_groups of o_rank
        positions   positions(d_rope), or None
        inner_norm  inner_norm(n_heads * d_head), or None

                                     compressor              indexer
        sliding attention            none                    none
        compressed sparse attention  OverlappingCompressor   Indexer
        heavily compressed           Compressor              none

    Source: transformers 5.24.0 modeling_deepseek_v4.py.
    Departure: there the norm of a query head rounds 1 / rms before the product.
    """

    traced = ()

    @staticmethod
    def check(
        *,
        d_model: int | None = None,
        n_heads: int | None = None,
        n_kv_heads: int | None = None,
        d_head: int | None = None,
        q_rank: int = 1024,
        d_rope: int = 64,
        window: int = 128,
        n_groups: int = 8,
        o_rank: int = 1024,
        scale: float | None = None,
    ) -> None:
        """Raises ValueError for values that do not fit; None is not known yet."""
        check_heads(d_model, n_heads, None, d_head)
        if n_kv_heads not in (None, 1):
            raise ValueError(
                f"n_kv_heads: all heads share one key and value, got {n_kv_heads}"
            )
        check_sizes(q_rank=q_rank, d_rope=d_rope, n_groups=n_groups, o_rank=o_rank)
        check_weights(window=window)
        if n_heads is not None and n_heads % n_groups:
            raise ValueError(
                "n_heads must be a multiple of n_groups, "
                f"got n_heads={n_heads} and n_groups={n_groups}"
            )
        if d_head is not None and d_rope > d_head:
            raise ValueError(
                f"d_rope is a part of d_head, got d_rope={d_rope} and d_head={d_head}"
            )
        if scale is not None:
            check_positive(scale=scale)

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        *,
        n_kv_heads: int | None = None,
        d_head: int | None = None,
        q_rank: int = 1024,
        d_rope: int = 64,
        window: int = 128,
        n_groups: int = 8,
        o_rank: int = 1024,
        scale: float | None = None,
        latent_norm: Callable,
        head_norm: Callable,
        compressor: Callable | None = None,
        indexer: Callable | None = None,
        positions: Callable | None = None,
        inner_norm: Callable | None = None,
        linear: Callable = Linear,
        rngs: nnx.Rngs,
    ):
        """Args:
            d_model: width of the residual stream.
            n_heads: query heads.
            n_kv_heads: None or 1.
            d_head: width of a head; None is d_model // n_heads.
            q_rank: width of the query's latent.
            d_rope: features of a head, its last, that know the position.
            window: a token sees this many tokens, itself the last of them.
            n_groups: groups of heads in the output.
            o_rank: width that each group is brought to.
            scale: factor on the scores; None is d_head**-0.5.
            latent_norm: latent_norm(width, rngs=rngs) makes a normalizer.
            head_norm: head_norm(d_head, rngs=rngs) likewise; has no gain there.
            compressor: compressor(d_model, width, norm, linear=..., rngs=...).
            indexer: indexer(d_model, q_rank, compressor, linear=..., rngs=...).
            positions: positions(d_rope) maps (q, k) to (q, k), linear in each.
            inner_norm: inner_norm(n_heads * d_head, rngs=rngs) makes a normalizer.
            linear: linear(d_in, d_out, use=..., bias=..., rngs=...) makes a map.
            rngs: gives the keys.

        Raises:
            ValueError: sizes do not fit, or an indexer without a compressor.
        """
        if d_head is None and d_model % n_heads == 0:
            d_head = d_model // n_heads
        self.check(
            d_model=d_model,
            n_heads=n_heads,
            n_kv_heads=n_kv_heads,
            d_head=d_head,
            q_rank=q_rank,
            d_rope=d_rope,
            window=window,
            n_groups=n_groups,
            o_rank=o_rank,
            scale=scale,
        )
        if indexer is not None and compressor is None:
            raise ValueError("indexer chooses entries of a compressor, got none")
        self.n_heads, self.d_head, self.d_rope = n_heads, d_head, d_rope
        self.window = window
        self.scale = d_head**-0.5 if scale is None else scale

        def maps(d_in, d_out, use):
            return linear(d_in, d_out, use=use, bias=False, rngs=rngs)

        def compress(d_model, width, *, rngs):
            return compressor(d_model, width, latent_norm, linear=linear, rngs=rngs)

        self.q_down = maps(d_model, q_rank, "query")
        self.q_norm = make_norm(latent_norm, q_rank, "qk", rngs=rngs)
        self.q_up = maps(q_rank, n_heads * d_head, "query")
        self.head_norm = make_norm(head_norm, d_head, "qk", rngs=rngs)
        self.kv = maps(d_model, d_head, "key")
        self.kv_norm = make_norm(latent_norm, d_head, "qk", rngs=rngs)
        self.output = GroupedOutput(
            n_heads * d_head,
            d_model,
            n_groups=n_groups,
            rank=o_rank,
            linear=linear,
            rngs=rngs,
        )
        self.compressor = (
            None if compressor is None else compress(d_model, d_head, rngs=rngs)
        )
        self.indexer = (
            None
            if indexer is None
            else indexer(d_model, q_rank, compress, linear=linear, rngs=rngs)
        )
        self.positions = None if positions is None else positions(d_rope)
        self.inner_norm = (
            None
            if inner_norm is None
            else make_norm(inner_norm, n_heads * d_head, "inner", rngs=rngs)
        )
        self.sinks = nnx.Param(jnp.zeros((n_heads,), jnp.float32), role="sink")

    def __call__(self, x: jax.Array, shape: tuple[int, int]) -> jax.Array:
        """Maps [batch * seq, d_model] to the same shape in the dtype of `x`.

        Args:
            x: tokens, sequence after sequence.
            shape: (batch, seq).

        Raises:
            ValueError: `shape` does not account for the tokens of `x`.
        """
        latent = self.q_norm(self.q_down(x))
        q = self.head_norm(split_heads(self.q_up(latent), self.d_head, shape))
        kv = split_heads(self.kv_norm(self.kv(x)), self.d_head, shape)
        q, kv = self._turned(q, 0), self._turned(kv, 1)
        seen = visible(shape[1], causal=True, window=self.window)
        if self.compressor is not None and shape[1] >= self.compressor.rate:
            entries, kept = self._past(x, latent, shape)
            kv = jnp.concatenate([kv, entries], axis=2)
            seen = jnp.broadcast_to(seen, (*kept.shape[:-1], shape[1]))
            seen = jnp.concatenate([seen, kept], axis=-1)
        y = join_heads(self._turned_back(self._gathered(q, kv, seen)))
        return self.output(y if self.inner_norm is None else self.inner_norm(y))

    def _past(self, x, latent, shape) -> tuple[jax.Array, jax.Array]:
        """Entries [batch, 1, n, d_head], and which each query sees [..., seq, n]."""
        rate = self.compressor.rate
        ready = closed_windows(shape[1], rate)
        entries = self._turned(self.compressor(x, shape)[:, None], 1, rate)
        if self.indexer is None:
            return entries, ready

        def turn(q, entries):
            return self._turned(q, 0), self._turned(entries, 1, rate)

        kept = self.indexer(x, latent, shape, ready=ready, turn=turn)
        return entries, kept[:, None]

    def _gathered(self, q, kv, seen) -> jax.Array:
        """What the heads read, [batch, n_heads, seq, d_head]."""
        wide = jnp.promote_types(q.dtype, jnp.float32)
        scores = jnp.einsum("bhtd,bgsd->bhts", q, kv, preferred_element_type=wide)
        scores = jnp.where(seen, self.scale * scores, jnp.finfo(wide).min)
        note(
            "attention_logit_max",
            lambda: jnp.max(jax.lax.stop_gradient(scores), axis=(0, 2, 3)),
        )
        # What is not seen has been masked already.
        weights = attention_weights(scores, causal=False, sinks=self.sinks[...])
        return jnp.einsum("bhts,bgsd->bhtd", weights.astype(kv.dtype), kv)

    # -- positions, on the last features ------------------------------------------------

    def _turned(self, x: jax.Array, which: int, every: int = 1) -> jax.Array:
        """`x` as queries (0) or keys (1) at positions 0, every, 2 every ..."""
        if self.positions is None:
            return x
        # Positions count in steps of one: `x` stands at every one of them, and is
        # taken from those it belongs to.
        spread = jnp.repeat(x[..., -self.d_rope :], every, axis=-2)
        turned = self.positions(spread, spread)[which][..., ::every, :]
        return jnp.concatenate([x[..., : -self.d_rope], turned], axis=-1)

    def _turned_back(self, y: jax.Array) -> jax.Array:
        """By the transposed map, which of a rotation is its inverse."""
        if self.positions is None:
            return y
        last = y[..., -self.d_rope :]
        turn = lambda x: self.positions(x, x)[0]  # noqa: E731
        (back,) = jax.linear_transpose(turn, last)(last)
        return jnp.concatenate([y[..., : -self.d_rope], back], axis=-1)


def closed_windows(seq: int, rate: int) -> jax.Array:
    """Whether window w is over when query i has been read: w < (i + 1) // rate.

    [seq, seq // rate].
    """
    i, w = jnp.arange(seq)[:, None], jnp.arange(seq // rate)
    return w < (i + 1) // rate
