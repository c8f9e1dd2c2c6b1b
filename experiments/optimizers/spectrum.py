"""Singular values of the first update: does an optimizer do what it promises?"""

import jax
import jax.numpy as jnp
import numpy as np

from blocks.parameters import ParamSpec
from experiments.optimizers.scale_by_muon import SCALES


def first_update_spectrum(
    optimizer, specs: dict[str, ParamSpec]
) -> dict[str, tuple[float, float]]:
    """Path of a kernel -> smallest and largest singular value of its first update.

    The gradient is standard normal, one copy [d_in, d_out] of a kernel, the same for
    all kernels of a shape. The update is that of `matrix_rule`, over the factor of its
    shape: before rate, decay and what `finish` does. Only for optimizers that say
    `is_orthogonal`, and only kernels that `groups` gives to their rule; else empty.

    The values should be near 1: with Muon's polynomials the largest is about 1.2 at any
    size. How far the smallest was lifted depends on where it began; of a square n x n
    gradient that is about n^-1.5 of the norm, so only the smallest of a kernel with
    unequal sides says something at a width of hundreds. Float32, and the decomposition
    in float64.
    """
    if not getattr(optimizer, "is_orthogonal", False):
        return {}
    groups = optimizer.groups(specs)
    shapes = {
        path: spec.shape[spec.n_stacked :]
        for path, spec in specs.items()
        if groups[path] == optimizer.group
    }
    # A decomposition takes most of the time: one for each shape.
    found = {shape: _extremes(optimizer, shape) for shape in set(shapes.values())}
    return {path: found[shape] for path, shape in shapes.items()}


def _extremes(optimizer, shape: tuple[int, int]) -> tuple[float, float]:
    rule = optimizer.matrix_rule(lambda x: None if x is None else jnp.float32(x))
    grad = np.random.default_rng(0).standard_normal(shape).astype(np.float32)

    @jax.jit
    def first_update(grad):
        zeros = jnp.zeros_like(grad)
        return rule.update(grad, rule.init(zeros), zeros)[0]

    update = np.asarray(first_update(grad), np.float64)
    scale = getattr(optimizer, "scale", None)
    update /= 1.0 if scale is None else SCALES[scale](*shape)
    values = np.linalg.svd(update, compute_uv=False)
    return float(values[-1]), float(values[0])
