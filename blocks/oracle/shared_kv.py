"""DeepSeek-V4's attention over one sequence in float64 NumPy, query by query.

As in `blocks.oracle.attention`: x is [seq, d_model], a map is (kernel, bias), norms are
functions of [..., width]. positions(head, at) turns rows of [n, d_rope] at positions
`at`, a list of numbers that may be negative.
"""

import numpy as np

from blocks.oracle.attention import softmax
from blocks.oracle.ffn import linear


def compressed(x, *, kv, gate, slots, norm, rate, overlapping=False):
    """An entry for every `rate` tokens, [seq // rate, width]."""
    values, gates = linear(x, *kv), linear(x, *gate)
    width = values.shape[1] // (2 if overlapping else 1)
    entries = []
    for w in range(len(x) // rate):
        first = w * rate
        # (value, logit) of every token that is in the entry, by feature.
        if overlapping:
            before = [
                (values[t, :width], gates[t, :width] + slots[t - first + rate, :width])
                for t in range(first - rate, first)
                if t >= 0
            ]
            own = [
                (values[t, width:], gates[t, width:] + slots[t - first, width:])
                for t in range(first, first + rate)
            ]
            met = before + own
        else:
            met = [
                (values[t], gates[t] + slots[t - first])
                for t in range(first, first + rate)
            ]
        entry = np.zeros(width)
        for feature in range(width):
            weights = softmax(np.array([logit[feature] for _, logit in met]))
            entry[feature] = weights @ [value[feature] for value, _ in met]
        entries.append(norm(entry))
    return np.array(entries).reshape(-1, width)


def on_last(y, d_rope, positions, at):
    """The last d_rope features of rows turned at their positions."""
    return np.concatenate([y[:, :-d_rope], positions(y[:, -d_rope:], at)], axis=1)


def chosen(x, latent, *, q, weigh, entries, n_heads, top_k, d_rope, positions, rate):
    """Of each query the entries that an indexer keeps, best first."""
    d_head = entries.shape[1]
    starts = [w * rate for w in range(len(entries))]
    keys = on_last(entries, d_rope, positions, starts)
    queries = linear(latent, *q).reshape(len(x), n_heads, d_head)
    weights = linear(x, *weigh)
    kept = []
    for i in range(len(x)):
        turned = on_last(queries[i], d_rope, positions, [i] * n_heads)
        scores = {}
        for w in range((i + 1) // rate):
            met = np.maximum(turned @ keys[w], 0) / np.sqrt(d_head)
            scores[w] = weights[i] @ met / np.sqrt(n_heads)
        kept.append(sorted(scores, key=lambda w: (-scores[w], w))[:top_k])
    return kept


def shared_kv_attention(
    x,
    *,
    q_down,
    q_up,
    kv,
    groups,
    o,
    q_norm,
    head_norm,
    kv_norm,
    sinks,
    n_heads,
    d_rope,
    window,
    positions,
    compressor=None,
    indexer=None,
    scale=None,
    inner_norm=None,
):
    """groups: kernels [d_in, rank], one for each group of heads.

    compressor: keywords of `compressed`; indexer: of `chosen`, with `compressor` of its
    own in place of the entries.
    """
    seq = len(x)
    latent = q_norm(linear(x, *q_down))
    queries = linear(latent, *q_up).reshape(seq, n_heads, -1)
    scale = 1 / np.sqrt(queries.shape[-1]) if scale is None else scale
    keys = on_last(kv_norm(linear(x, *kv)), d_rope, positions, range(seq))
    entries, seen = np.zeros((0, keys.shape[1])), [[]] * seq
    if compressor is not None:
        rate = compressor["rate"]
        entries = compressed(x, **compressor)
        starts = [w * rate for w in range(len(entries))]
        entries = on_last(entries, d_rope, positions, starts)
        seen = [list(range((i + 1) // rate)) for i in range(seq)]
        if indexer is not None:
            own = dict(indexer)
            own["entries"] = compressed(x, **own.pop("compressor"))
            turning = dict(d_rope=d_rope, positions=positions, rate=rate)
            seen = chosen(x, latent, **own, **turning)
    heads = np.zeros(queries.shape)
    for i in range(seq):
        of_window = keys[max(0, i - window + 1) : i + 1]
        values = np.concatenate(
            [of_window, entries[seen[i]].reshape(-1, keys.shape[1])]
        )
        turned = on_last(head_norm(queries[i]), d_rope, positions, [i] * n_heads)
        for head in range(n_heads):
            weights = softmax(scale * values @ turned[head], sinks[head])
            heads[i, head] = weights @ values
        heads[i] = on_last(heads[i], d_rope, positions, [-i] * n_heads)
    y = heads.reshape(seq, -1)
    if inner_norm is not None:
        y = inner_norm(y)
    narrow = [
        part @ kernel
        for part, kernel in zip(np.split(y, len(groups), axis=1), groups, strict=True)
    ]
    return linear(np.concatenate(narrow, axis=1), *o)
