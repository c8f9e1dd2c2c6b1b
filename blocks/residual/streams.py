"""Several residual streams: how they begin, are read, mixed, written and end.

The state is [n_streams, tokens, d_model], streams first: [tokens, n_streams * d_model],
the flattened vector of the papers, costs copies of everything on the way in and out.
Coefficients have the tokens last: weights [n_streams, tokens], mixing matrices
[n_streams, n_streams, tokens], or 1 in place of tokens where all share them.

Sums over streams are written out, and new streams stacked. On CPU the gradient of
one einsum or one broadcast sum takes 8 to 60 times as long at n_streams 4, d_model 512.
"""

import jax
import jax.numpy as jnp

from blocks.checks import check_choice

EXPANSIONS = (
    "copy",  # every stream begins as the embedding
    "first",  # the first does, the others at zero
)
REDUCTIONS = (
    "mean",  # over the streams
    "sum",
    "head",  # weights sigmoid(alpha * (v' phi) + bias), v' as in `projected`
)
MOST_STREAMS = 8


def check_streams(n_streams: int, expand: str, reduce: str) -> None:
    """Raises ValueError for a number of streams or an end that does not exist."""
    if not 1 <= n_streams <= MOST_STREAMS:
        raise ValueError(f"n_streams must be 1 to {MOST_STREAMS}, got {n_streams}")
    check_choice("expand", expand, EXPANSIONS)
    check_choice("reduce", reduce, REDUCTIONS)


def refuse_post_norm(post_norm, n_streams: int) -> None:
    """Raises ValueError if there is a norm after the addition."""
    if post_norm is not None:
        raise ValueError(
            "post_norm: a norm after the addition has no meaning with "
            f"n_streams={n_streams}; take a placement without post_norm"
        )


def wide(x: jax.Array) -> jax.Array:
    """`x` in float32, or in its own dtype where that is wider."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def projected(x: jax.Array, phi: jax.Array, eps: float) -> jax.Array:
    """v' phi of every token, [n_coefficients, tokens].

    v' = v / sqrt(mean(v^2) + eps), v the streams of a token one after the other.
    phi is [n_streams, d_model, n_coefficients]. The division comes after the product,
    so that nothing of the size of the streams is made.
    """
    x = wide(x)
    n_streams, _, d_model = x.shape
    square = sum(jnp.sum(jnp.square(x[s]), axis=-1) for s in range(n_streams))
    product = jnp.sum(jnp.einsum("ntd,ndk->ntk", x, phi), axis=0)
    return product.T * jax.lax.rsqrt(square / (n_streams * d_model) + eps)


def weighted(x: jax.Array, weights: jax.Array) -> jax.Array:
    """sum_s weights[s] x[s]: [tokens, d_model], summed in float32 or wider."""
    streams = wide(x)
    y = sum(w[:, None] * s for w, s in zip(weights, streams, strict=True))
    return y.astype(x.dtype)


def mixed(x: jax.Array, mixing: jax.Array) -> list[jax.Array]:
    """sum_j mixing[i, j] x[j] for every i, in float32 or wider."""
    streams = list(wide(x))
    return [
        sum(h[:, None] * s for h, s in zip(row, streams, strict=True)) for row in mixing
    ]


def written(x: jax.Array, mixing: jax.Array | None, post: jax.Array, branches):
    """mixing x + post * branches, rounded to the dtype of `x` once.

    branches: what goes to each stream, n_streams arrays. mixing None: the identity.
    """
    kept = list(wide(x)) if mixing is None else mixed(x, mixing)
    new = [
        s + w[:, None] * wide(b) for s, w, b in zip(kept, post, branches, strict=True)
    ]
    return jnp.stack(new).astype(x.dtype)


def similarity(x: jax.Array) -> jax.Array:
    """Mean cosine between two different streams, over pairs and tokens."""
    x = wide(x)
    n = len(x)
    tiny = jnp.finfo(x.dtype).tiny
    unit = x * jax.lax.rsqrt(jnp.sum(jnp.square(x), axis=-1, keepdims=True) + tiny)
    together = jnp.sum(jnp.square(jnp.sum(unit, axis=0)), axis=-1)
    alone = jnp.sum(jnp.square(unit), axis=(0, 2))
    return jnp.mean(together - alone) / (n * (n - 1))


def look_at(state: jax.Array, pre, mixing, post) -> dict[str, jax.Array]:
    """What a probe shows of a joint: means over tokens, worst cases over tokens.

    mixing [n, n], pre and post [n], stream_rms [n], stream_similarity; and by how much
    rows and columns of the mixing matrix of a token miss a sum of 1 at most.
    """
    off = [jnp.max(jnp.abs(jnp.sum(mixing, axis=axis) - 1)) for axis in (1, 0)]
    shown = {
        "mixing": jnp.mean(mixing, axis=-1),
        "pre": jnp.mean(pre, axis=-1),
        "post": jnp.mean(post, axis=-1),
        "sinkhorn_residual_row": off[0],
        "sinkhorn_residual_column": off[1],
        "stream_rms": jnp.sqrt(jnp.mean(jnp.square(wide(state)), axis=(1, 2))),
    }
    if len(state) > 1:
        shown["stream_similarity"] = similarity(state)
    return shown
