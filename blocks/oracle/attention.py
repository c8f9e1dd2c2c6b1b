"""Attention over one sequence in float64 NumPy: one head, one query at a time.

x is [seq, d_model]; a linear map is (kernel [d_in, d_out], bias [d_out] or None).
Norms are functions of [..., width]; positions are functions of one head [seq, d_head].
"""

import functools

import numpy as np

from blocks.oracle.ffn import linear, sigmoid, silu
from blocks.oracle.positions import rope


def softmax(x, sink=None):
    """Over x, and over a sink beside it that is then dropped."""
    logits = x if sink is None else np.append(x, sink)
    weights = np.exp(logits - logits.max())
    return (weights / weights.sum())[: len(x)]


def visible_keys(i, seq, *, causal, window=None, chunk=None):
    """The keys that query i sees."""
    return [
        j
        for j in range(seq)
        if (not causal or j <= i)
        and (window is None or i - window < j <= i)
        and (chunk is None or i // chunk == j // chunk)
    ]


def one_head(
    query, key, value, *, scale, sink=None, softcap=None, causal=True, **visible
):
    """query, key [seq, d_head], value [seq, d_value] -> [seq, d_value]."""
    out = np.zeros_like(value)
    for i in range(len(query)):
        keys = visible_keys(i, len(key), causal=causal, **visible)
        scores = scale * key[keys] @ query[i]
        if softcap is not None:
            scores = softcap * np.tanh(scores / softcap)
        out[i] = softmax(scores, sink) @ value[keys]
    return out


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
    window=None,
    chunk=None,
    softcap=None,
    sinks=None,
    scale=None,
    tau=None,
    rope_base=None,
    q_positions=None,
    k_positions=None,
    q_norm=None,
    k_norm=None,
    v_norm=None,
    qk_norm_at="head",
    gate=None,
    inner_norm=None,
):
    """Grouped-query attention.

    `rope_base` is short for two plain rotations; `gate` is the map behind the sigmoid,
    to one number per head or to one per feature.
    """
    n_kv_heads = n_kv_heads or n_heads
    d_head = q[0].shape[1] // n_heads
    if rope_base is not None:
        q_positions = k_positions = functools.partial(rope, base=rope_base)
    if scale is None:
        scale = 1 / np.sqrt(d_head)
    if tau is not None:
        scale = float(tau[0])
    queries, keys, values = linear(x, *q), linear(x, *k), linear(x, *v)
    if qk_norm_at == "all_heads" and q_norm is not None:
        queries, keys = q_norm(queries), k_norm(keys)

    def prepared(head, norm, positions):
        if qk_norm_at == "head" and norm is not None:
            head = norm(head)
        if positions is not None:
            head = positions(head)
        if qk_norm_at == "after_positions" and norm is not None:
            head = norm(head)
        return head

    heads = []
    for head in range(n_heads):
        kv_head = head * n_kv_heads // n_heads
        mine = slice(head * d_head, (head + 1) * d_head)
        shared = slice(kv_head * d_head, (kv_head + 1) * d_head)
        heads.append(
            one_head(
                prepared(queries[:, mine], q_norm, q_positions),
                prepared(keys[:, shared], k_norm, k_positions),
                values[:, shared] if v_norm is None else v_norm(values[:, shared]),
                scale=scale,
                sink=None if sinks is None else sinks[head],
                softcap=softcap,
                causal=causal,
                window=window,
                chunk=chunk,
            )
        )
    y = np.stack(heads, axis=1)  # [seq, n_heads, d_head]
    if gate is not None:
        gates = 1 / (1 + np.exp(-linear(x, *gate)))
        y = y * gates.reshape(len(x), n_heads, -1)
    y = y.reshape(len(x), -1)
    if inner_norm is not None:
        y = inner_norm(y)
    return linear(y, *o)


def latent_attention(
    x,
    *,
    kv_down,
    k_rope,
    k_up,
    v_up,
    o,
    kv_norm,
    n_heads,
    d_rope,
    q=None,
    q_down=None,
    q_up=None,
    q_norm=None,
    causal=True,
    window=None,
    scale=None,
    positions=None,
    inner_norm=None,
):
    """Multi-head latent attention, with `q` or with `q_down`, `q_norm` and `q_up`."""
    d_head = k_up[0].shape[1] // n_heads
    d_value = v_up[0].shape[1] // n_heads
    if scale is None:
        scale = 1 / np.sqrt(d_head + d_rope)
    if positions is None:
        positions = np.array
    queries = linear(x, *q) if q else linear(q_norm(linear(x, *q_down)), *q_up)
    latent = kv_norm(linear(x, *kv_down))
    shared_key = positions(linear(x, *k_rope))
    heads = []
    for head in range(n_heads):
        query = queries.reshape(len(x), n_heads, -1)[:, head]
        query = np.concatenate([query[:, :d_head], positions(query[:, d_head:])], 1)
        key = linear(latent, *k_up)[:, head * d_head : (head + 1) * d_head]
        key = np.concatenate([key, shared_key], axis=1)
        value = linear(latent, *v_up)[:, head * d_value : (head + 1) * d_value]
        heads.append(
            one_head(query, key, value, scale=scale, causal=causal, window=window)
        )
    y = np.concatenate(heads, axis=-1)
    if inner_norm is not None:
        y = inner_norm(y)
    return linear(y, *o)


def gated_deltanet(
    x,
    *,
    q,
    k,
    v,
    o,
    gate,
    beta,
    decay,
    q_taps,
    k_taps,
    v_taps,
    log_rate,
    offset,
    q_norm,
    k_norm,
    head_norm,
    n_heads,
    n_key_heads=None,
    positions=None,
    inner_norm=None,
):
    """Gated DeltaNet: for every value head its state, one token at a time."""
    n_key_heads = n_key_heads or n_heads
    positions = positions or np.array
    queries, keys, values = (
        silu(convolution(linear(x, *kernel), taps))
        for kernel, taps in ((q, q_taps), (k, k_taps), (v, v_taps))
    )
    betas = sigmoid(linear(x, *beta))
    kept = np.exp(-np.exp(log_rate) * np.logaddexp(0, linear(x, *decay) + offset))
    gates = silu(linear(x, *gate)).reshape(len(x), n_heads, -1)
    d_key = keys.shape[1] // n_key_heads
    y = np.zeros_like(gates)
    for head in range(n_heads):
        key_head = head * n_key_heads // n_heads
        mine = slice(key_head * d_key, (key_head + 1) * d_key)
        query = positions(q_norm(queries[:, mine])) / np.sqrt(d_key)
        key = positions(k_norm(keys[:, mine]))
        value = values.reshape(gates.shape)[:, head]
        state = np.zeros((d_key, value.shape[1]))
        for t in range(len(x)):
            state = kept[t, head] * state
            wrong = value[t] - state.T @ key[t]
            state = state + betas[t, head] * np.outer(key[t], wrong)
            y[t, head] = head_norm(state.T @ query[t]) * gates[t, head]
    y = y.reshape(len(x), -1)
    return linear(y if inner_norm is None else inner_norm(y), *o)


def convolution(x, taps):
    """y[t] = sum over j of taps[j] x[t - len(taps) + 1 + j]; x is [seq, features]."""
    y = np.zeros_like(x)
    for t in range(len(x)):
        for j, tap in enumerate(taps):
            at = t - len(taps) + 1 + j
            if at >= 0:
                y[t] += tap * x[at]
    return y
