"""Numbers that multiply a stream or a branch.

A factor is a number, an array or `nnx.Param` that broadcasts against [tokens, d_model],
or a function without arguments that gives a number when it is needed.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

Factor = float | jax.Array | nnx.Variable | Callable


def of_depth(function: Callable, n_layers) -> Factor:
    """function(n_layers), as a factor.

    A traced depth (`blocks.grown_stack`) is no attribute of a module: it would land in
    the graph definition. There the number is made where it is used.
    """
    if isinstance(n_layers, int):
        return float(function(n_layers))
    return functools.partial(function, n_layers)


def is_one(factor: Factor) -> bool:
    """Whether a factor can be left out, known on the host."""
    return isinstance(factor, (int, float)) and factor == 1.0


def times(factor: Factor, x: jax.Array) -> jax.Array:
    """factor * x in float32 or wider; `x` itself where the factor is the number one."""
    if is_one(factor):
        return x
    if isinstance(factor, nnx.Variable):
        factor = factor[...]
    elif callable(factor):
        factor = factor()
    wide = jnp.promote_types(x.dtype, jnp.float32)
    return jnp.asarray(factor, wide) * x.astype(wide)


def weighted_sum(
    skip: Factor, x: jax.Array, branch_scale: Factor, branch: jax.Array
) -> jax.Array:
    """skip * x + branch_scale * branch, rounded once to the dtype of `x`.

    Factors of one are left out, not multiplied: the same bits either way, but a shorter
    program for the common case.
    """
    return (times(skip, x) + times(branch_scale, branch)).astype(x.dtype)
