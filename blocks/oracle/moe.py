"""Mixtures of experts in float64 NumPy, one token and one expert at a time.

A choice is a list of (expert, weight) per token.
"""

import numpy as np

from blocks.oracle.ffn import sigmoid, sqrtsoftplus


def best(values, k, among=None):
    """Numbers of the k largest values, largest first, the earlier one if equal."""
    among = range(len(values)) if among is None else among
    return sorted(among, key=lambda i: (-values[i], i))[:k]


def softmax_router(
    x,
    *,
    kernel,
    bias=None,
    top_k=2,
    renormalize=True,
    scale=1.0,
    n_groups=1,
    top_groups=1,
):
    """Qwen3-MoE, gpt-oss; with groups and without renormalization DeepSeek-V2."""
    choices = []
    for token in x:
        logits = token @ kernel + (0 if bias is None else bias)
        p = np.exp(logits - logits.max())
        p /= p.sum()
        groups = np.split(np.arange(len(p)), n_groups)
        kept = best([p[g].max() for g in groups], top_groups)
        chosen = best(p, top_k, [e for g in kept for e in groups[g]])
        total = p[chosen].sum() if renormalize else 1.0
        choices.append([(e, scale * p[e] / total) for e in chosen])
    return choices


def sigmoid_router(
    x,
    *,
    kernel,
    balance_bias=0.0,
    score="sigmoid",
    top_k=2,
    renormalize=True,
    scale=1.0,
    n_groups=1,
    top_groups=1,
):
    """DeepSeek-V3; score sqrtsoftplus is DeepSeek-V4."""
    choices = []
    for token in x:
        s = {"sigmoid": sigmoid, "sqrtsoftplus": sqrtsoftplus}[score](token @ kernel)
        ranked = s + balance_bias
        groups = np.split(np.arange(len(s)), n_groups)
        worth = [sum(sorted(ranked[g])[-2:]) for g in groups]
        kept = best(worth, top_groups)
        chosen = best(ranked, top_k, [e for g in kept for e in groups[g]])
        total = s[chosen].sum() + 1e-20 if renormalize else 1.0
        choices.append([(e, scale * s[e] / total) for e in chosen])
    return choices


def hash_router(
    x,
    tokens,
    *,
    kernel,
    table,
    score="sqrtsoftplus",
    renormalize=True,
    scale=1.0,
):
    """Experts from a table by the token; their weights as of `sigmoid_router`."""
    choices = []
    for vector, token in zip(x, tokens, strict=True):
        s = {"sigmoid": sigmoid, "sqrtsoftplus": sqrtsoftplus}[score](vector @ kernel)
        chosen = [int(e) for e in table[token % len(table)]]
        total = s[chosen].sum() + 1e-20 if renormalize else 1.0
        choices.append([(e, scale * s[e] / total) for e in chosen])
    return choices


def load(choices, n_experts):
    """Share of the choices that went to each expert."""
    counts = np.zeros(n_experts)
    for choice in choices:
        for e, _ in choice:
            counts[e] += 1
    return counts / counts.sum()


def balancing_loss(choices, probabilities):
    """Switch's: n_experts * sum of load times mean probability."""
    n_experts = probabilities.shape[-1]
    return n_experts * load(choices, n_experts) @ probabilities.mean(axis=0)


def moe(x, choices, experts, *, shared=None, shared_gate=None, weigh_input=False):
    """experts: functions [tokens, d_model] -> the same; shared: one more, or None."""
    y = np.zeros_like(x)
    for t, choice in enumerate(choices):
        token = x[t : t + 1]
        for e, weight in choice:
            if weigh_input:
                y[t] += experts[e](weight * token)[0]
            else:
                y[t] += weight * experts[e](token)[0]
    if shared is not None:
        gate = 1.0 if shared_gate is None else sigmoid(x @ shared_gate)
        y += gate * shared(x)
    return y
