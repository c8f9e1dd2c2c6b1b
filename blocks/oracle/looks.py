"""What a pointwise norm does to its input, in float64 NumPy.

x is [tokens, d_model]; f and its derivative are given as functions of one number.
"""

import math

import numpy as np

from blocks.oracle.pointwise_norms import FUNCTIONS

# f'(z), written out.
SLOPES = {
    "erf": lambda z: 2 / math.sqrt(math.pi) * np.exp(-(z**2)),
    "tanh": lambda z: 1 - np.tanh(z) ** 2,
    "isru": lambda z: (1 + z**2) ** -1.5,
    "hardtanh": lambda z: 1.0 * (np.abs(z) <= 1),
    "arctan": lambda z: 2 / math.pi / (1 + z**2),
}


def rms(x):
    return np.sqrt((x**2).mean(axis=-1))


def cosine(a, b):
    lengths = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)
    return (a * b).sum(axis=-1) / lengths


def scale_of(x):
    centred = x - x.mean()
    return {
        "x_rms": np.sqrt((x**2).mean()),
        "x_token_rms": rms(x).mean(),
        "x_max": np.abs(x).max(),
        "x_kurtosis": (centred**4).mean() / (centred**2).mean() ** 2,
    }


def look_at_map(x, *, function, alpha, shift):
    f, slope = FUNCTIONS[function], SLOPES[function]
    z = alpha * x + shift
    y = f(z)
    relative = slope(z) / slope(np.zeros(()))
    up, down = (rms(f(c * alpha * x + shift)) for c in (1.01, 1 / 1.01))
    logs = np.log(rms(x)), np.log(rms(y))
    # The two rounding neighbours of 1 in bfloat16 are 1 - 2^-8 and 1 + 2^-7; what lies
    # on the half way goes to the even one, which is 1.
    rounds_to_one = (np.abs(y) >= 1 - 2.0**-9) & (np.abs(y) <= 1 + 2.0**-8)
    return {
        "alpha": alpha,
        "shift": shift,
        "sigma_z": z.std(),
        "sat99": (np.abs(y) > 0.99).mean(),
        "sat_z2": (np.abs(alpha * x) > 2).mean(),
        "dead10": (relative < 0.1).mean(),
        "dead01": (relative < 0.01).mean(),
        "gain_eff": relative.mean(),
        "exact_one": rounds_to_one.mean(),
        "elasticity": (np.log(up) - np.log(down)).mean() / (2 * math.log(1.01)),
        "scale_slope": np.polyfit(*logs, 1)[0],
        "scale_slope_r2": np.corrcoef(*logs)[0, 1] ** 2,
        "lin_cos": cosine(y - f(np.asarray(shift)), alpha * x).mean(),
        "sign_cos": cosine(y, np.sign(z)).mean(),
    }
