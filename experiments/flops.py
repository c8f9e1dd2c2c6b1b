"""Floating-point operations of the matrix products in a traced function."""

import math

import jax


def matmul_flops(fn, *args) -> int:
    """2 * M * N * K summed over every dot_general of `fn(*args)`.

    `args` may be shapes (jax.ShapeDtypeStruct). A scan counts its body once per
    iteration; a loop whose length is not known before it runs counts its body once.
    """
    return _count(jax.make_jaxpr(fn)(*args).jaxpr)


def _count(jaxpr) -> int:
    total = 0
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "dot_general":
            total += _dot(eqn)
        times = eqn.params["length"] if eqn.primitive.name == "scan" else 1
        for value in jax.tree.leaves(
            eqn.params, is_leaf=lambda v: hasattr(v, "eqns") or hasattr(v, "jaxpr")
        ):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                total += times * _count(inner)
    return total


def _dot(eqn) -> int:
    ((contracted, _), _) = eqn.params["dimension_numbers"]
    left = eqn.invars[0].aval.shape
    inner = math.prod(left[axis] for axis in contracted)
    return 2 * math.prod(eqn.outvars[0].aval.shape) * inner
