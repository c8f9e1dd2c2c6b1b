"""Positions in float64 NumPy, one feature pair at a time.

x is one head [seq, d_head] or the embedding [seq, d_model].
"""

import math

import numpy as np


def rope(x, *, base, layout="half", fraction=1.0, scaling=None, magnitude=1.0):
    """Rotates the first fraction of a head.

    scaling(frequency, i, d_rotary) -> frequency of pair i; magnitude multiplies the
    rotated features.
    """
    d_rotary = int(x.shape[-1] * fraction)
    y = np.array(x)
    for i in range(d_rotary // 2):
        a, b = (i, i + d_rotary // 2) if layout == "half" else (2 * i, 2 * i + 1)
        frequency = base ** (-2 * i / d_rotary)
        if scaling is not None:
            frequency = scaling(frequency, i, d_rotary)
        for p in range(len(x)):
            cos, sin = np.cos(p * frequency), np.sin(p * frequency)
            y[p, a] = magnitude * (x[p, a] * cos - x[p, b] * sin)
            y[p, b] = magnitude * (x[p, b] * cos + x[p, a] * sin)
    return y


def linear_scaling(frequency, i, d_rotary, *, factor):
    return frequency / factor


def llama3_scaling(frequency, i, d_rotary, *, factor, low, high, original_len):
    wavelength = 2 * math.pi / frequency
    if wavelength < original_len / high:
        return frequency
    if wavelength > original_len / low:
        return frequency / factor
    s = (original_len / wavelength - low) / (high - low)
    return (1 - s) * frequency / factor + s * frequency


def yarn_scaling(
    frequency,
    i,
    d_rotary,
    *,
    base,
    factor,
    original_len,
    beta_fast,
    beta_slow,
    truncate,
):
    def pair_of(turns):
        return (d_rotary * math.log(original_len / (2 * math.pi * turns))) / (
            2 * math.log(base)
        )

    low, high = pair_of(beta_fast), pair_of(beta_slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, d_rotary - 1)
    if low == high:
        high += 0.001
    ramp = min(max((i - low) / (high - low), 0), 1)
    return frequency / factor * ramp + frequency * (1 - ramp)


def query_temperature(x, *, strength, period):
    return np.stack(
        [
            row * (1 + strength * math.log(1 + (p + 1) // period))
            for p, row in enumerate(x)
        ]
    )


def learned(x, *, table):
    return np.stack([row + table[p] for p, row in enumerate(x)])


def sinusoidal(x, *, base):
    y = np.array(x)
    d_model = x.shape[-1]
    for p in range(len(x)):
        for i in range(d_model // 2):
            angle = p / base ** (2 * i / d_model)
            y[p, 2 * i] += math.sin(angle)
            y[p, 2 * i + 1] += math.cos(angle)
    return y
