"""Attention over one sequence in float64 NumPy: one head, one query at a time.

x is [seq, d_model]; a linear map is (kernel [d_in, d_out], bias [d_out] or None).
"""

import numpy as np

from blocks.oracle.ffn import linear


def rope(x, *, base):
    """Rotates a head x [seq, d_head]; feature i goes with i + d_head / 2."""
    half = x.shape[-1] // 2
    y = np.empty_like(x)
    for position in range(len(x)):
        for i in range(half):
            angle = position / base ** (2 * i / x.shape[-1])
            a, b = x[position, i], x[position, i + half]
            y[position, i] = a * np.cos(angle) - b * np.sin(angle)
            y[position, i + half] = b * np.cos(angle) + a * np.sin(angle)
    return y


def softmax(x):
    weights = np.exp(x - x.max())
    return weights / weights.sum()


def attention(
    x,
    *,
    q,
    k,
    v,
    o,
    n_heads,
    n_kv_heads=None,
    causal=True,
    rope_base=None,
    q_norm=None,
    k_norm=None,
    inner_norm=None,
):
    """Grouped-query attention; q_norm, k_norm and inner_norm are functions or None."""
    n_kv_heads = n_kv_heads or n_heads
    d_head = q[0].shape[1] // n_heads
    queries, keys, values = linear(x, *q), linear(x, *k), linear(x, *v)
    heads = []
    for head in range(n_heads):
        kv_head = head * n_kv_heads // n_heads
        mine = slice(head * d_head, (head + 1) * d_head)
        shared = slice(kv_head * d_head, (kv_head + 1) * d_head)
        query, key, value = queries[:, mine], keys[:, shared], values[:, shared]
        if q_norm is not None:
            query = q_norm(query)
        if k_norm is not None:
            key = k_norm(key)
        if rope_base is not None:
            query, key = rope(query, base=rope_base), rope(key, base=rope_base)
        out = np.empty_like(query)
        for i in range(len(x)):
            last = i + 1 if causal else len(x)
            scores = key[:last] @ query[i] / np.sqrt(d_head)
            out[i] = softmax(scores) @ value[:last]
        heads.append(out)
    y = np.concatenate(heads, axis=-1)
    if inner_norm is not None:
        y = inner_norm(y)
    return linear(y, *o)
