"""Depths and values of a law: checked, in ascending order, as logarithms."""

import math

import numpy as np


def checked(depths, values_by_seed) -> tuple[np.ndarray, np.ndarray]:
    """Returns depths ascending and ln g as [seed, depth]."""
    x = checked_depths(depths)
    logs = log_values(len(x), values_by_seed)
    order = np.argsort(x)
    return x[order], logs[:, order]


def checked_depths(depths) -> np.ndarray:
    x = np.asarray(list(depths), dtype=np.float64)
    if len(x) < 2:
        raise ValueError(f"a law needs at least two depths, got {list(depths)}")
    if len(np.unique(x)) < len(x):
        raise ValueError(f"a depth appears twice in {list(depths)}")
    if not (np.isfinite(x).all() and (x >= 1).all()):
        raise ValueError(f"depths must be at least 1, got {list(depths)}")
    return x


def log_values(n_depths: int, values_by_seed) -> np.ndarray:
    if not values_by_seed:
        raise ValueError("a law needs at least one seed, got none")
    for seed, values in values_by_seed.items():
        if len(values) != n_depths:
            raise ValueError(
                f"seed {seed} has {len(values)} values for {n_depths} depths"
            )
        for value in values:
            if not (math.isfinite(value) and value > 0):
                raise ValueError(
                    f"values must be positive and finite, got {value} for seed {seed}"
                )
    return np.log(np.asarray(list(values_by_seed.values()), dtype=np.float64))


def slopes(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Least-squares slopes of each row of y [seed, depth] on x [depth]."""
    centred = x - x.mean()
    return y @ centred / (centred @ centred)
