"""Shampoo: the gradient between inverse roots of its two Gram matrices."""

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
    sides,
)


class Moments(NamedTuple):
    """Of one kernel; each of the pairs is (inputs, outputs), None for a side left alone.

    mu: average of the gradient.
    grams: averages of G G^T and G^T G.
    roots: their inverse roots as of the last refresh.
    """

    mu: jax.Array
    grams: list
    roots: list


class ShampooState(NamedTuple):
    """count: finished updates. kernels: `Moments` of each kernel."""

    count: jax.Array
    kernels: optax.Updates


def scale_by_shampoo(
    b1=0.9,
    b2=0.95,
    *,
    cutoff=1e-6,
    precondition_every: int = 1,
    max_dim: int = 10000,
) -> optax.GradientTransformation:
    """Multiplies the averaged gradient by inverse fourth roots from both sides.

        M <- b1 M + (1 - b1) G                      t = 1, 2, ...
        L <- b2 L + (1 - b2) G G^T,  R <- b2 R + (1 - b2) G^T G
        u = L'^-1/4 M' R'^-1/4

    with M' = M / (1 - b1^t), L' = L / (1 - b2^t), R' likewise. Eigenvalues below `cutoff`
    times the largest take the power 0 instead of a huge one: the Gram matrix of the
    longer side has rank d_in < d_out at first, and a root that is some steps old would
    enlarge what comes in the missing directions without bound. The update does not
    change when all gradients are scaled. The first one is the orthogonal polar factor of
    G, and b1 = b2 = 0 keeps it so: Muon without momentum and with exact
    orthogonalisation. Later singular values fall below 1 with the noise of the gradient.

    Kernels are [..., d_in, d_out], leading axes are copies and never mix. A side longer
    than `max_dim` is left as it is, and the other takes the power -1/2.

    Args:
        b1, b2, cutoff: numbers or traced scalars of the dtype of the gradients.
        precondition_every: the roots are computed at t = 1 and every so many updates
            after it; static, like the next. In between they are stale, and directions
            they have hardly seen are enlarged up to cutoff^-1/4 times. Under vmap over
            members they are computed at every step all the same.
        max_dim: longest side that is preconditioned.

    Raises:
        ValueError: a kernel with both sides longer than `max_dim`.

    Source: arXiv 1802.09568 algorithm 1; averages in place of sums and their bias
    correction as in facebookresearch/optimizers distributed_shampoo, the pseudo-inverse
    as KellerJordan/modded-nanogpt track 3 runs it. Departures: no eps I, and no
    grafting, so that the size of the update is that of the formula.
    """

    def start(p):
        if not any(sides(p, max_dim)):
            raise ValueError(
                f"max_dim: Shampoo needs a side of at most {max_dim}, got a kernel of "
                f"shape {p.shape}"
            )
        grams = no_grams(p, max_dim)
        roots = [None if gram is None else jnp.zeros_like(gram) for gram in grams]
        return Moments(jnp.zeros_like(p), grams, roots)

    def init(params):
        return ShampooState(jnp.zeros((), jnp.int32), jax.tree.map(start, params))

    def update(grads, state, params=None):
        del params
        count = state.count + 1

        def step(g, old):
            t = count.astype(g.dtype)
            mu = b1 * old.mu + (1 - b1) * g
            grams = averaged_grams(old.grams, g, b2)
            used = sum(gram is not None for gram in grams)

            def root(gram):
                return None if gram is None else inverse_root(gram, 2 * used, cutoff)

            roots = jax.lax.cond(
                state.count % precondition_every == 0,
                lambda: [root(_over(gram, 1 - b2**t)) for gram in grams],
                lambda: old.roots,
            )
            u = on_both_sides(roots[0], mu / (1 - b1**t), roots[1])
            return u, Moments(mu, grams, roots)

        both = jax.tree.map(step, grads, state.kernels)
        updates = jax.tree.map(lambda _, pair: pair[0], grads, both)
        kernels = jax.tree.map(lambda _, pair: pair[1], grads, both)
        return updates, ShampooState(count, kernels)

    return optax.GradientTransformation(init, update)


def inverse_root(gram: jax.Array, root: int, cutoff) -> jax.Array:
    """gram^(-1 / root) of symmetric [..., d, d], on the space above the cutoff."""
    values, vectors = matrixwise(jnp.linalg.eigh, gram)
    used = values > cutoff * values[..., -1:]
    powers = jnp.where(used, jnp.where(used, values, 1) ** (-1 / root), 0)
    return product(vectors * powers[..., None, :], vectors.mT)


def _over(gram, factor):
    return None if gram is None else gram / factor
