"""Sinkhorn-Knopp: any matrix of logits to a doubly stochastic matrix."""

import jax
import jax.numpy as jnp


def sinkhorn(logits: jax.Array, iterations: int, *, eps: float = 0.0) -> jax.Array:
    """exp(logits), its columns and then its rows divided by their sums, repeatedly.

        M <- rows(columns(M))        from M = exp(logits), `iterations` times

    logits: [n, n, ...], row, column, then anything. Rows are divided last, so every
    row sums to 1 exactly and what the iteration has not reached yet is in the columns.
    The error shrinks by about the second singular value squared per iteration: slowly
    where the result is close to a permutation.

    In the dtype of `logits`, which should be float32 or wider. The first iteration is
    on logarithms, for logits of any size. After it nothing can overflow or vanish:
    rows sum to 1 and no column to more than n, so all sums lie between 1 / n and n.

    eps > 0 is the form of DeepSeek-V4: softmax over a column plus eps, and eps added to
    every sum it is divided by; rows and columns then miss 1 by about eps.

    Source: arXiv 2512.24880 equation 9; eps: huggingface/transformers
    models/deepseek_v4 (there on the transpose), deepseek-ai/TileKernels.
    """
    if eps == 0.0:
        logits = jax.nn.log_softmax(logits, axis=0)
        matrix = jnp.exp(jax.nn.log_softmax(logits, axis=1))
    else:
        matrix = jax.nn.softmax(logits, axis=0) + eps
        matrix = matrix / (_sum(matrix, 1) + eps)

    def iterate(matrix, _):
        matrix = matrix / (_sum(matrix, 0) + eps)
        matrix = matrix / (_sum(matrix, 1) + eps)
        return matrix, None

    return jax.lax.scan(iterate, matrix, length=iterations - 1)[0]


def _sum(matrix: jax.Array, axis: int) -> jax.Array:
    """The sum over one axis as additions, which are faster than a reduction here."""
    n = matrix.shape[axis]
    parts = [jax.lax.index_in_dim(matrix, i, axis, keepdims=True) for i in range(n)]
    return sum(parts)
