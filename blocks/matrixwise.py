"""Factorizations of a stack of matrices."""

from collections.abc import Callable

import jax


def matrixwise(fn: Callable, x: jax.Array):
    """`fn` of every matrix of x [..., m, n]: one after another on a CPU, else together.

    jaxlib 0.10 hands a stack of matrices for LAPACK to the threads that run the program
    and waits for them on one of these: as many such calls at once as there are threads
    (two runs on two cores) wait for each other for ever. One matrix is factored where it
    stands. The calls are in turn under `jax.vmap` too.
    Source: jax-ml/jax v0.10.2, jaxlib/cpu/lapack_kernels.cc (v0.11.2 waits no longer).
    """
    return jax.lax.platform_dependent(
        x, cpu=_in_turn(fn), default=_together(fn, x.ndim)
    )


def _in_turn(fn: Callable) -> Callable:
    one = jax.custom_batching.sequential_vmap(lambda x: fn(x))  # without its keywords

    def mapped(x):
        each = one
        for _ in range(x.ndim - 2):
            each = jax.vmap(each)
        return each(x)

    return mapped


def _together(fn: Callable, ndim: int) -> Callable:
    for _ in range(ndim - 2):
        fn = jax.vmap(fn)
    return fn
