"""From scores to attention weights: soft-cap, mask, softmax, sinks."""

import jax
import jax.numpy as jnp

from blocks.checks import check_positive, check_sizes


def attention_weights(
    scores: jax.Array,
    *,
    causal: bool,
    window: int | None = None,
    chunk: int | None = None,
    softcap: float | None = None,
    sinks: jax.Array | None = None,
    start: int | jax.Array = 0,
) -> jax.Array:
    """Softmax over the last axis of scores [..., n_heads, queries, keys].

        scores  = softcap * tanh(scores / softcap)        if there is a cap
        weights = exp(scores) / (sum of exp(scores) over visible keys + exp(sink))

    In float32, or the dtype of `scores` where that is wider. A masked score is the
    most negative finite number: its weight and its gradient are exactly zero, and no
    infinity enters a difference.

    Args:
        scores: query before key.
        causal, window, chunk, start: see `visible`.
        softcap: largest absolute score; it acts before the mask, which it would lift.
        sinks: one logit per head [n_heads], not scaled, capped or masked, that takes
            its part of the weight to nowhere: rows then sum to less than 1.

    Source: gemma 2 and gpt-oss, transformers 5.24.0 modeling_gemma2.py and
    modeling_gpt_oss.py (eager_attention_forward).
    """
    scores = scores.astype(jnp.promote_types(scores.dtype, jnp.float32))
    if softcap is not None:
        scores = soft_cap(scores, softcap)
    queries, keys = scores.shape[-2:]
    seen = visible(
        queries, keys=keys, start=start, causal=causal, window=window, chunk=chunk
    )
    if seen is not None:
        scores = jnp.where(seen, scores, jnp.finfo(scores.dtype).min)
    if sinks is None:
        return jax.nn.softmax(scores, axis=-1)
    sinks = sinks.astype(scores.dtype)[:, None, None]
    top = jnp.maximum(scores.max(axis=-1, keepdims=True), sinks)
    top = jax.lax.stop_gradient(top)  # the quotient does not depend on it
    raised = jnp.exp(scores - top)
    return raised / (raised.sum(axis=-1, keepdims=True) + jnp.exp(sinks - top))


def soft_cap(scores: jax.Array, cap: float) -> jax.Array:
    """cap * tanh(scores / cap): the identity near zero, never beyond +- cap."""
    return cap * jnp.tanh(scores / cap)


def visible(
    seq: int,
    *,
    causal: bool,
    window: int | None = None,
    chunk: int | None = None,
    keys: int | None = None,
    start: int | jax.Array = 0,
) -> jax.Array | None:
    """Which key j the query i sees: a mask [seq, keys], or None where all see all.

    causal   j <= i
    window   i - window < j <= i: `window` keys, the token itself among them
    chunk    i // chunk == j // chunk

    Queries i are start, start + 1, ..; `start` may be traced. Keys j are 0 .. keys - 1;
    None is as many as queries.
    """
    if not causal and chunk is None:
        return None
    keys = seq if keys is None else keys
    i, j = jnp.arange(seq)[:, None], jnp.arange(keys)
    if not (isinstance(start, int) and start == 0):
        i = start + i
    seen = jnp.ones((seq, keys), bool)
    if causal:
        seen = i >= j
    if window is not None:
        seen &= i - j < window
    if chunk is not None:
        seen &= i // chunk == j // chunk
    return seen


def check_weights(
    *,
    causal: bool = True,
    window: int | None = None,
    chunk: int | None = None,
    softcap: float | None = None,
) -> None:
    """Raises ValueError for a mask or a cap that means nothing."""
    check_sizes(window=window, chunk=chunk)
    if window is not None and not causal:
        raise ValueError(f"window looks back only and needs causal, got {window}")
    if softcap is not None:
        check_positive(softcap=softcap)
