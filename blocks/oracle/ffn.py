"""Feed-forward networks in float64 NumPy.

x is [tokens, d_model]; a linear map is (kernel [d_in, d_out], bias [d_out] or None).
"""

import math

import numpy as np


def linear(x, kernel, bias=None):
    y = x @ kernel
    return y if bias is None else y + bias


def identity(x):
    return x


def relu(x):
    return np.maximum(x, 0)


def relu2(x):
    return np.maximum(x, 0) ** 2


def gelu(x):
    """The tanh form."""
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def gelu_erf(x):
    """x Phi(x); erfc keeps the digits of the left tail."""
    return np.vectorize(lambda z: 0.5 * z * math.erfc(-z / math.sqrt(2)))(x)


def sigmoid(x):
    return np.exp(-np.logaddexp(0, -x))


def silu(x):
    return x * sigmoid(x)


def quick_gelu(x):
    return x * sigmoid(1.702 * x)


def sqrtsoftplus(x):
    return np.sqrt(np.logaddexp(0, x))


def mlp(x, *, up, down, activation=gelu, inner_norm=None):
    h = activation(linear(x, *up))
    if inner_norm is not None:
        h = inner_norm(h)
    return linear(h, *down)


def glu(x, *, gate, up, down, activation=sigmoid, inner_norm=None):
    h = activation(linear(x, *gate)) * linear(x, *up)
    if inner_norm is not None:
        h = inner_norm(h)
    return linear(h, *down)


def swiglu(x, *, gate, up, down, inner_norm=None):
    return glu(x, gate=gate, up=up, down=down, activation=silu, inner_norm=inner_norm)


def clamped_swiglu(
    x, *, gate, up, down, limit=7.0, alpha=1.702, offset=1.0, inner_norm=None
):
    """gpt-oss; limit 10, alpha 1, offset 0 is DeepSeek-V4."""
    g = np.minimum(linear(x, *gate), limit)
    u = np.clip(linear(x, *up), -limit, limit)
    h = g * sigmoid(alpha * g) * (u + offset)
    if inner_norm is not None:
        h = inner_norm(h)
    return linear(h, *down)
