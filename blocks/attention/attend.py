"""Softmax attention between heads, and which program computes it."""

import functools

import jax
import jax.extend.backend
import jax.numpy as jnp

from blocks.attention.weights import attention_weights, visible
from blocks.looking import note

IMPLEMENTATIONS = (
    "auto",  # cudnn where the rule of `why_not_cudnn` allows it, else explicit
    "explicit",  # every weight is an entry of an array [batch, n_heads, seq, seq]
    "cudnn",  # a fused kernel, or an error
)


def attend(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    causal: bool,
    window: int | None = None,
    chunk: int | None = None,
    softcap: float | None = None,
    sinks: jax.Array | None = None,
    scale: float | None = None,
    start: jax.Array | None = None,
    implementation: str = "auto",
) -> jax.Array:
    """weights(scale * q k^T) v, in the dtype of `v`.

    Args:
        q: [batch, n_heads, seq, d_head].
        k: [batch, n_kv_heads, keys, d_head]; query head j reads key/value head
            j // (n_heads / n_kv_heads).
        v: [batch, n_kv_heads, keys, d_value].
        causal, window, chunk, softcap, sinks: see `blocks.attention.weights`.
        scale: factor on the scores; None is d_head**-0.5.
        start: where keys come from a `blocks.cache.Cache`, the position of the first
            query; None is as many keys as queries.
        implementation: one of `IMPLEMENTATIONS`. "auto" is decided by dtype, shapes
            and keywords (`why_not_cudnn`) and by the platform a program is compiled
            for; on a machine without CUDA it is "explicit".

    Returns:
        [batch, n_heads, seq, d_value].

    Raises:
        ValueError: "cudnn" was asked for what it cannot compute, or without a GPU.
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    at = {} if start is None else {"start": start}
    seen = functools.partial(
        visible, q.shape[-2], keys=k.shape[-2], causal=causal, window=window, **at
    )
    note("attention_logit_max", lambda: largest_score(q, k, scale, seen(chunk=chunk)))
    exactly = functools.partial(
        explicit,
        causal=causal,
        window=window,
        chunk=chunk,
        softcap=softcap,
        scale=scale,
        **at,
    )
    if implementation == "explicit":
        return exactly(q, k, v, sinks=sinks)
    reason = why_not_cudnn(q, v, chunk=chunk, softcap=softcap, sinks=sinks, cache=start)
    kernel = functools.partial(
        fused, causal=causal, window=window, scale=scale, implementation="cudnn"
    )
    if implementation == "cudnn":
        if reason is not None:
            raise ValueError(f"implementation cudnn: {reason}")
        if not _has_cuda():
            raise ValueError(
                "implementation cudnn: the kernel needs an NVIDIA GPU, and the default "
                f"device is {jax.default_backend()} (auto takes it where there is one)"
            )
        return kernel(q, k, v)
    if reason is None and q.shape[-1] <= 128 and _has_cuda():
        return jax.lax.platform_dependent(q, k, v, cuda=kernel, default=exactly)
    return exactly(q, k, v, sinks=sinks)


def why_not_cudnn(
    q, v, *, chunk=None, softcap=None, sinks=None, cache=None
) -> str | None:
    """Why cuDNN's kernel, as JAX offers it, cannot compute this; None if it can.

    It takes float16 and bfloat16, heads of a multiple of 8 up to 256 features (before
    Hopper, and under "auto", up to 128), and knows causal masks and windows only.
    Values narrower than keys are padded with zeros.
    Source: jax 0.10.2 jax/_src/cudnn/fused_attention_stablehlo.py.
    """
    given = {"chunk": chunk, "softcap": softcap, "sinks": sinks, "cache": cache}
    for name, value in given.items():
        if value is not None:
            return f"the kernel has no {name}"
    if q.dtype not in (jnp.float16, jnp.bfloat16):
        return f"the kernel takes float16 and bfloat16, got {q.dtype}"
    if q.shape[-1] % 8 or q.shape[-1] > 256:
        return (
            "the kernel takes heads of a multiple of 8 features up to 256, "
            f"got {q.shape[-1]}"
        )
    if v.shape[-1] > q.shape[-1]:
        return f"values are wider than keys, {v.shape[-1]} and {q.shape[-1]}"
    return None


def _has_cuda() -> bool:
    """Tracing the kernel asks the default device what it is."""
    return (
        jax.default_backend() == "gpu"
        and "cuda" in jax.extend.backend.get_backend().platform_version
    )


def fused(q, k, v, *, causal, window, scale, implementation):
    """`jax.nn.dot_product_attention` on [batch, heads, seq, features]."""
    d_value = v.shape[-1]
    v = jnp.pad(v, [(0, 0)] * 3 + [(0, q.shape[-1] - d_value)])
    y = jax.nn.dot_product_attention(
        *(x.swapaxes(1, 2) for x in (q, k, v)),
        scale=scale,
        is_causal=causal,
        local_window_size=None if window is None else (window - 1, 0),
        implementation=implementation,
    )
    return y.swapaxes(1, 2)[..., :d_value]


def explicit(q, k, v, *, scale, sinks=None, **mask_and_cap):
    """Explicit [batch, head, token, feature] products.

    Scores and softmax are in float32 or wider; weights are rounded to the dtype of v
    before they meet it. On CPU the einsum form of the same thing (and
    jax.nn.dot_product_attention) is about a quarter slower.
    """
    batch, n_heads, seq, _ = q.shape
    n_kv_heads = k.shape[1]
    scores = scaled_scores(q, k, scale)
    weights = attention_weights(scores, sinks=sinks, **mask_and_cap).astype(v.dtype)
    y = weights.reshape(batch, n_kv_heads, -1, k.shape[2]) @ v
    return y.reshape(batch, n_heads, seq, v.shape[-1])


def scaled_scores(q: jax.Array, k: jax.Array, scale: float) -> jax.Array:
    """scale * q k^T [batch, n_heads, seq, keys], in float32 or wider."""
    batch, n_heads, seq, d_head = q.shape
    _, n_kv_heads, keys, _ = k.shape
    # The queries of a group are stacked along the token axis, so that its keys and
    # values enter one product as they are and are never repeated.
    q = q.reshape(batch, n_kv_heads, -1, d_head)
    wide = jnp.promote_types(q.dtype, jnp.float32)
    scores = jnp.matmul(q, k.swapaxes(-1, -2), preferred_element_type=wide)
    return scores.reshape(batch, n_heads, seq, keys) * scale


def largest_score(
    q: jax.Array, k: jax.Array, scale: float, seen: jax.Array | None
) -> jax.Array:
    """Of each head [n_heads]: max of scale * q k^T over the batch and visible pairs.

    Before the soft-cap, which hides how large scores are (the capped one is
    cap * tanh(max / cap)), and without sinks. `seen` is the mask of
    `blocks.attention.weights.visible`. Beside `explicit` the scores are computed once;
    beside a fused kernel this is where they are an array, at a product's cost.
    No gradient flows out.
    """
    q, k = jax.lax.stop_gradient((q, k))
    scores = scaled_scores(q, k, scale)
    if seen is not None:
        scores = jnp.where(seen, scores, jnp.finfo(scores.dtype).min)
    return jnp.max(scores, axis=(0, 2, 3))
