"""Pointwise and newer normalizers in float64 NumPy.

x is [..., d_model]; parameters are arrays named as in the modules. `rms`, the running
scale of the EMA blends, is 0 before the first step.
"""

import math

import numpy as np

erf = np.vectorize(math.erf, otypes=[np.float64])


def clip(z):
    return np.clip(z, -1, 1)


# arXiv 2512.10938, table 7
FUNCTIONS = {
    "erf": erf,
    "tanh": np.tanh,
    "satursin": lambda z: np.sin(np.clip(z, -np.pi / 2, np.pi / 2)),
    "arcsinhclip": lambda z: clip(np.arcsinh(z)),
    "isru": lambda z: z / np.sqrt(z**2 + 1),
    "exproot": lambda z: np.sign(z) * (1 - np.exp(-np.sqrt(np.abs(z)))),
    "hardtanh": clip,
    "expsign": lambda z: np.sign(z) * (1 - np.exp(-np.abs(z))),
    "logsignclip": lambda z: clip(np.sign(z) * np.log(np.abs(z) + 1)),
    "relsign": lambda z: z / (np.sqrt(z**2 + 1) + 1),
    "arctan": lambda z: 2 / np.pi * np.arctan(z),
    "smoothsign": lambda z: z / (1 + np.abs(z)),
    "logquadclip": lambda z: clip(np.sign(z) * np.log(z**2 + 1)),
    "power23clip": lambda z: clip(np.sign(z) * np.abs(z) ** (2 / 3)),
    "saturlog": lambda z: np.sign(z) * (1 - 1 / (1 + np.log(np.abs(z) + 1))),
    "cubsign": lambda z: z**3 / (np.abs(z) ** 3 + 1),
    "identity": lambda z: z,
}


def pointwise(x, *, function, alpha, shift, gain, bias):
    return gain * FUNCTIONS[function](alpha * x + shift) + bias


def dyisru(x, *, rho, gain, bias, floor):
    beta = np.log(1 + np.exp(rho)) + floor
    return gain * x / np.sqrt(beta + x**2) + bias


def root_mean_square(x, eps):
    return np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps)


def bhyt(x, *, lam, gain, kappa, eps):
    return gain * np.tanh(lam * x / (kappa * root_mean_square(x, eps)))


def seednorm(x, *, alpha, beta, gain, eps):
    along = (x * beta).sum(axis=-1, keepdims=True)
    return (np.tanh(along) * alpha + gain) * x / root_mean_square(x, eps)


def gatednorm(x, *, gain, down, up, eps):
    n = (1 + gain) * x / root_mean_square(x, eps)
    hidden = n @ down
    hidden = hidden / (1 + np.exp(-hidden))
    return 2 * n / (1 + np.exp(-(hidden @ up)))


def ema_blend_input(x, *, alpha, shift, gain, bias, rms, blend, eps):
    scale = scale_so_far(x, rms) + eps
    z = alpha * x / ((1 - blend) + blend * scale) + shift
    return gain * erf(z) + bias


def ema_blend_output(x, *, alpha, shift, gain, bias, rms, blend, eps):
    scale = scale_so_far(x, rms) + eps
    inner = (1 - blend) * erf(alpha * x + shift) + blend * x / scale
    return gain * inner + bias


def ema_scale(x, *, alpha, shift, gain, bias, rms, eps):
    return gain * erf(alpha * x / (scale_so_far(x, rms) + eps) + shift) + bias


def scale_so_far(x, rms):
    return rms if np.any(rms != 0) else np.sqrt((x**2).mean())


def next_rms(x, *, rms, decay):
    return decay * scale_so_far(x, rms) + (1 - decay) * np.sqrt((x**2).mean())
