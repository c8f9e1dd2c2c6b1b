"""Normalizers in float64 NumPy, named like the choice or like the file of its class.

x is [..., d_model]; parameters are arrays named as in the modules, settings are the
keywords of the YAML files. Without a gain or bias the argument is left out.
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


def divided_by_root(x, square, *, eps, eps_mode):
    if eps_mode == "inside":
        return x / np.sqrt(square + eps)
    if eps_mode == "outside":
        return x / (np.sqrt(square) + eps)
    return x / np.maximum(np.sqrt(square), eps)


def rmsnorm(x, *, gain=None, eps, eps_mode="inside"):
    mean_square = (x**2).mean(axis=-1, keepdims=True)
    y = divided_by_root(x, mean_square, eps=eps, eps_mode=eps_mode)
    return y if gain is None else gain * y


def rmsnorm_zc(x, *, gain, eps, eps_mode="inside"):
    """The gain is stored as its distance from 1."""
    return rmsnorm(x, gain=1 + gain, eps=eps, eps_mode=eps_mode)


def prmsnorm(x, *, gain, p, eps, eps_mode="inside"):
    k = int(p * x.shape[-1])
    mean_square = (x[..., :k] ** 2).mean(axis=-1, keepdims=True)
    return gain * divided_by_root(x, mean_square, eps=eps, eps_mode=eps_mode)


def l2norm(x, *, eps, eps_mode="inside"):
    square = (x**2).sum(axis=-1, keepdims=True)
    return divided_by_root(x, square, eps=eps, eps_mode=eps_mode)


def scalenorm(x, *, scale, eps):
    return scale * l2norm(x, eps=eps, eps_mode="clamp")


def fixnorm(x, *, eps):
    return math.sqrt(x.shape[-1]) * l2norm(x, eps=eps, eps_mode="clamp")


def unitnorm(x, *, gain=1.0):
    length = np.sqrt((x**2).sum(axis=-1, keepdims=True))
    return gain * x / np.where(length == 0, 1, length)


def groupnorm(x, *, gain, bias=0.0, n_groups, eps):
    groups = np.split(x, n_groups, axis=-1)
    return gain * np.concatenate([layernorm(g, eps=eps) for g in groups], -1) + bias


def headnorm(x, *, gain, n_heads, eps, centred=False):
    """A gain shorter than the token is that of every head."""
    norm = layernorm if centred else rmsnorm
    heads = np.split(x, n_heads, axis=-1)
    gains = np.split(np.resize(gain, x.shape[-1]), n_heads)
    normed = [g * norm(h, eps=eps) for g, h in zip(gains, heads, strict=True)]
    return np.concatenate(normed, axis=-1)


def identity(x):
    return x


def batchnorm(x, *, gain, bias, eps, mean, var, is_training):
    """Over all tokens; outside training with the running mean and variance."""
    rows = x.reshape(-1, x.shape[-1])
    if is_training:
        mean = rows.mean(axis=0)
        var = ((rows - mean) ** 2).mean(axis=0)
    return (gain * (rows - mean) / np.sqrt(var + eps) + bias).reshape(x.shape)


def dyt(x, *, alpha, gain, bias):
    return gain * np.tanh(alpha * x) + bias


def derf(x, *, alpha, shift, gain, bias):
    erf = np.vectorize(math.erf, otypes=[np.float64])
    return gain * erf(alpha * x + shift) + bias
