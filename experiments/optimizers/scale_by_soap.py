"""SOAP: Adam in the eigenbasis of Shampoo's preconditioner."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from blocks.matrixwise import matrixwise
from experiments.optimizers.kronecker import (
    averaged_grams,
    no_grams,
    on_both_sides,
    product,
)


class Moments(NamedTuple):
    """Of one kernel; each of the pairs is (inputs, outputs), None for a side left alone.

    mu: average of the gradient, as it comes.
    nu: average of the squared gradient, in the eigenbases.
    grams: averages of G G^T and G^T G.
    bases: their orthonormal eigenvectors, by falling eigenvalue.
    """

    mu: jax.Array
    nu: jax.Array
    grams: list
    bases: list


class SoapState(NamedTuple):
    """count: finished updates. kernels: `Moments` of each kernel."""

    count: jax.Array
    kernels: optax.Updates


def scale_by_soap(
    b1=0.95,
    b2=0.95,
    *,
    eps=1e-8,
    shampoo_beta=0.95,
    precondition_every: int = 10,
    max_dim: int = 10000,
) -> optax.GradientTransformation:
    """Runs Adam on the gradient turned into slowly moving eigenbases.

        t = 0:       L = (1 - beta) G G^T,  R = (1 - beta) G^T G
                     Q_L, Q_R their eigenvectors, u = 0
        t = 1, ...:  M <- b1 M + (1 - b1) G
                     V <- b2 V + (1 - b2) (Q_L^T G Q_R)^2
                     N = (Q_L^T M Q_R) / (sqrt(V) + eps)
                     u = sqrt(1 - b2^t) / (1 - b1^t) * Q_L N Q_R^T
                     L <- beta L + (1 - beta) G G^T,  R <- beta R + (1 - beta) G^T G
        every k-th:  Q <- qr(L Q), columns (and V) first sorted by falling diag(Q^T L Q)

    with beta = shampoo_beta, k = precondition_every. The first update moves nothing, so
    that no gradient is measured in a basis made of itself; for the same reason L, R and
    Q change after the step. Kernels are [..., d_in, d_out], leading axes are copies and
    never mix. A side longer than `max_dim` is left as it is; with both, this is Adam.

    Args:
        b1, b2, eps, shampoo_beta: numbers or traced scalars of the dtype of the
            gradients.
        precondition_every, max_dim: static. A refresh costs two QR decompositions per
            kernel and is skipped in between, except under vmap over members, where both
            branches run at every step, the eigenvectors of the first included.

    Source: arXiv 2409.11321 algorithm 3; nikhilvyas/SOAP soap.py, whose eps stands
    before the bias correction, as here. Departure: directions that no gradient has shown
    yet (the longer side of a kernel has some at first) get a definite basis, there
    whatever rounding makes of it.
    """

    def start(p):
        grams = no_grams(p, max_dim)
        bases = [None if gram is None else jnp.zeros_like(gram) for gram in grams]
        return Moments(jnp.zeros_like(p), jnp.zeros_like(p), grams, bases)

    def init(params):
        return SoapState(jnp.zeros((), jnp.int32), jax.tree.map(start, params))

    def first(g, old):
        grams = averaged_grams(old.grams, g, shampoo_beta)
        bases = [None if gram is None else _eigenbasis(gram, g) for gram in grams]
        return jnp.zeros_like(g), Moments(old.mu, old.nu, grams, bases)

    def later(g, old, count):
        left, right = old.bases
        mu = b1 * old.mu + (1 - b1) * g
        turned = on_both_sides(_t(left), g, right)
        nu = b2 * old.nu + (1 - b2) * turned * turned
        u = on_both_sides(_t(left), mu, right) / (jnp.sqrt(nu) + eps)
        t = count.astype(g.dtype)
        u = on_both_sides(left, u, _t(right)) * jnp.sqrt(1 - b2**t) / (1 - b1**t)
        grams = averaged_grams(old.grams, g, shampoo_beta)
        nu, bases = jax.lax.cond(
            count % precondition_every == 0,
            lambda: _refresh(
                nu, grams, old.bases, seen=(count + 1) * min(g.shape[-2:])
            ),
            lambda: (nu, old.bases),
        )
        return u, Moments(mu, nu, grams, bases)

    def update(grads, state, params=None):
        del params

        def step(g, old):
            return jax.lax.cond(
                state.count == 0,
                lambda: first(g, old),
                lambda: later(g, old, state.count),
            )

        both = jax.tree.map(step, grads, state.kernels)
        updates = jax.tree.map(lambda _, pair: pair[0], grads, both)
        kernels = jax.tree.map(lambda _, pair: pair[1], grads, both)
        return updates, SoapState(state.count + 1, kernels)

    return optax.GradientTransformation(init, update)


def _eigenbasis(gram, g):
    vectors = matrixwise(jnp.linalg.eigh, gram)[1][..., ::-1]  # eigh sorts upwards
    return _orthonormal(vectors, min(g.shape[-2:]))


def _refresh(nu, grams, bases, seen):
    """One step of power iteration per side, columns sorted; nu moves with its columns."""
    fresh = []
    for axis, gram, basis in zip((-2, -1), grams, bases, strict=True):
        if gram is None:
            fresh.append(None)
            continue
        power = product(gram, basis)
        order = jnp.argsort(-jnp.sum(basis * power, axis=-2), axis=-1)  # [..., d]
        across = jnp.expand_dims(order, -1 if axis == -2 else -2)
        nu = jnp.take_along_axis(nu, across, axis=axis)
        power = jnp.take_along_axis(power, order[..., None, :], axis=-1)
        fresh.append(_orthonormal(power, seen))
    return nu, fresh


def _orthonormal(columns, seen):
    """Q of QR, from the first `seen` columns alone.

    k gradients span k min(d_in, d_out) directions at most. Columns past them are
    rounding errors, and with them the basis of the rest would be another one in a stack,
    under vmap or on another machine. Householder's reflections complete zeros in one way.
    """
    used = jnp.arange(columns.shape[-1]) < seen
    return matrixwise(jnp.linalg.qr, jnp.where(used, columns, 0))[0]


def _t(basis):
    return None if basis is None else basis.mT
