"""Normalizers in float64 NumPy, one function per choice and named like it.

x is [..., d_model]; parameters are arrays named as in the modules.
"""

import math

import numpy as np


def layernorm(x, *, gain=None, bias=None, eps):
    mean = x.mean(axis=-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(axis=-1, keepdims=True)
    y = (x - mean) / np.sqrt(variance + eps)
    if gain is not None:
        y = gain * y
    if bias is not None:
        y = y + bias
    return y


def rmsnorm(x, *, gain, eps):
    mean_square = (x**2).mean(axis=-1, keepdims=True)
    return gain * x / np.sqrt(mean_square + eps)


def dyt(x, *, alpha, gain, bias):
    return gain * np.tanh(alpha * x) + bias


def derf(x, *, alpha, shift, gain, bias):
    erf = np.vectorize(math.erf, otypes=[np.float64])
    return gain * erf(alpha * x + shift) + bias
