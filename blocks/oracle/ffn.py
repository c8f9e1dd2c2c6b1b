"""Feed-forward networks in float64 NumPy.

x is [tokens, d_model]; a linear map is (kernel [d_in, d_out], bias [d_out] or None).
"""

import numpy as np


def linear(x, kernel, bias=None):
    y = x @ kernel
    return y if bias is None else y + bias


def relu(x):
    return np.maximum(x, 0)


def gelu(x):
    """The tanh form."""
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def silu(x):
    return x / (1 + np.exp(-x))


def mlp(x, *, up, down, activation=gelu, inner_norm=None):
    h = activation(linear(x, *up))
    if inner_norm is not None:
        h = inner_norm(h)
    return linear(h, *down)


def swiglu(x, *, gate, up, down, inner_norm=None):
    h = silu(linear(x, *gate)) * linear(x, *up)
    if inner_norm is not None:
        h = inner_norm(h)
    return linear(h, *down)
