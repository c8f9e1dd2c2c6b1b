"""Initializers as probability laws in float64, one function per choice, named like it.

Each takes the use of a matrix, its shape [fan_in, fan_out] and its place, and says what
an entry is drawn from. Beside the uses of `blocks.linear` there are "bias", of which
fan_out entries stand behind fan_in inputs, and "embedding", of shape [vocab_size,
d_model].
"""

import math
from typing import NamedTuple


class Law(NamedTuple):
    """N(0, std^2) cut at +-bound, or uniform within it if std is None.

    std is that of the whole bell; bound 0 means exactly zero.
    """

    std: float | None = None
    bound: float = math.inf


ZERO = Law(bound=0.0)


def moment(law: Law, k: int) -> float:
    """E[x^k] of an even k."""
    if law.bound == 0:
        return 0.0
    if law.std is None:
        return law.bound**k / (k + 1)
    if law.bound == math.inf:
        return law.std**k * math.prod(range(1, k, 2))
    # Integration by parts: m_k = (k - 1) m_{k-2} - 2 c^{k-1} phi(c) / P(|z| < c).
    c = law.bound / law.std
    inside = math.erf(c / math.sqrt(2))
    density = math.exp(-(c**2) / 2) / math.sqrt(2 * math.pi)
    m = 1.0
    for j in range(2, k + 1, 2):
        m = (j - 1) * m - 2 * c ** (j - 1) * density / inside
    return law.std**k * m


def normal(
    use, fan_in, fan_out, layer, n_sublayers, *, std, embedding_std, depth_power
):
    if use == "bias":
        return ZERO
    if use == "embedding":
        return Law(embedding_std)
    return Law(std * n_sublayers**-depth_power if use == "output" else std)


small = gpt2 = transformers = deepseek = normal


def truncated(use, fan_in, fan_out, layer, n_sublayers, *, cutoff, **keywords):
    law = normal(use, fan_in, fan_out, layer, n_sublayers, **keywords)
    return law if law == ZERO else Law(law.std, cutoff * law.std)


bert = truncated


def mitchell(use, fan_in, fan_out, layer, n_sublayers, *, depth_power, cutoff):
    if use == "bias":
        return ZERO
    if use == "embedding":
        std = math.sqrt(1 / fan_out)
    elif use == "output":
        std = math.sqrt(1 / fan_in) / (2 * (layer + 1)) ** depth_power
    else:
        std = math.sqrt(1 / fan_in)
    return Law(std, cutoff * std)


def lecun(use, fan_in, fan_out, layer, n_sublayers, *, query_scale, embedding_std):
    if use == "bias":
        return ZERO
    if use == "embedding":
        return Law(embedding_std)
    return Law(math.sqrt(1 / fan_in) * (query_scale if use == "query" else 1))


t5 = lecun


def xavier(use, fan_in, fan_out, layer, n_sublayers, *, gain, embedding_std):
    if use == "bias":
        return ZERO
    if use == "embedding":
        return Law(embedding_std)
    return Law(gain * math.sqrt(2 / (fan_in + fan_out)))


def xavier_uniform(use, fan_in, fan_out, layer, n_sublayers, *, gain, embedding_std):
    if use in ("bias", "embedding"):
        return xavier(use, fan_in, fan_out, 0, 1, gain=1, embedding_std=embedding_std)
    return Law(bound=gain * math.sqrt(6 / (fan_in + fan_out)))


def kaiming(use, fan_in, fan_out, layer, n_sublayers, *, embedding_std):
    if use == "bias":
        return Law(bound=1 / math.sqrt(fan_in))
    if use == "embedding":
        return Law(embedding_std)
    return Law(math.sqrt((2 if use == "hidden" else 1) / fan_in))


def kaiming_uniform(use, fan_in, fan_out, layer, n_sublayers, *, embedding_std):
    law = kaiming(use, fan_in, fan_out, layer, n_sublayers, embedding_std=embedding_std)
    if use in ("bias", "embedding"):
        return law
    return Law(bound=math.sqrt(3) * law.std)


def torch(use, fan_in, fan_out, layer, n_sublayers, *, embedding_std):
    if use == "embedding":
        return Law(embedding_std)
    return Law(bound=1 / math.sqrt(fan_in))


def mup(
    use, fan_in, fan_out, layer, n_sublayers, *, std, base_width, embedding_std, head
):
    if use == "bias" or (use == "head" and head == "zero"):
        return ZERO
    if use == "embedding":
        return Law(embedding_std)
    if use == "head":
        return Law(std * base_width / fan_in)
    width = fan_out if use == "output" else fan_in
    return Law(std * math.sqrt(base_width / width))
