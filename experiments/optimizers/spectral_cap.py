"""Muon with a cap on the spectral norms of the matrices themselves."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from blocks.keywords import with_keywords_of
from experiments.optimizers import common
from experiments.optimizers.muon import Muon

FIRST, THEN = 30, 6  # power iterations at the first step, and at every other


class CappedMuon(Muon):
    """Muon; after its step every hidden matrix is no larger than `cap`.

        W <- (W + step) * min(1, cap / sigma_1(W + step))

    The whole matrix is scaled, which keeps the ratios of its singular values; a projection
    onto the ball of spectral norm `cap` would cut the large ones alone and cost a singular
    value decomposition a step. sigma_1 is found by power iteration from the vector of the
    step before, from below: it is a few per cent too small while two singular values
    change places, and exact where the largest stands apart.

    Args:
        cap: largest spectral norm of a kernel [d_in, d_out].
        the others: of `Muon`.

    Source: power iteration kept over steps as in arXiv 1802.05957, algorithm 1.
    """

    traced = (*Muon.traced, "cap")

    @staticmethod
    @with_keywords_of(Muon.check)
    def check(*, cap: float = 1.0, **others) -> None:
        """Refuses values before anything is traced or compiled."""
        Muon.check(**others)
        common.check_eps(cap=cap)

    @with_keywords_of(Muon.__init__)
    def __init__(self, *, cap: float = 1.0, **others):
        super().__init__(**others)
        self.cap = cap

    def finish(self, number: common.Number) -> optax.GradientTransformation:
        """The cap, on the finished step."""
        return capped(number(self.cap))


class CapState(NamedTuple):
    """count: finished updates. v: a guess of the right singular vector [..., d_out]."""

    count: jax.Array
    v: optax.Updates


def capped(cap) -> optax.GradientTransformation:
    """step -> the step that ends at the capped matrix; needs the parameters."""

    def init(params):
        return CapState(jnp.zeros([], jnp.int32), jax.tree.map(_start, params))

    def update(updates, state, params=None):
        def capped_step(p, step, v):
            w = p + step.astype(p.dtype)
            n = jnp.where(state.count == 0, FIRST, THEN)
            v = jax.lax.fori_loop(
                0, n, lambda _, v: _unit(_times(w.mT, _times(w, v))), v
            )
            sigma = jnp.linalg.norm(_times(w, v), axis=-1)[..., None, None]
            beyond = 1 - jnp.minimum(1, cap / jnp.maximum(sigma, cap))
            return step - beyond * w, v

        flat, tree = jax.tree.flatten(params)
        both = [
            capped_step(*leaves)
            for leaves in zip(
                flat, jax.tree.leaves(updates), jax.tree.leaves(state.v), strict=True
            )
        ]
        updates = jax.tree.unflatten(tree, [step for step, _ in both])
        v = jax.tree.unflatten(tree, [v for _, v in both])
        return updates, CapState(state.count + 1, v)

    return optax.GradientTransformation(init, update)


def _start(p):
    # Any vector will do that is not orthogonal to the one looked for.
    draw = jax.random.normal(jax.random.key(0), (p.shape[-1],), p.dtype)
    return jnp.broadcast_to(_unit(draw), (*p.shape[:-2], p.shape[-1]))


def _times(w, v):
    product = jnp.matmul(w, v[..., None], precision=jax.lax.Precision.HIGHEST)
    return product[..., 0]


def _unit(v):
    norm = jnp.linalg.norm(v, axis=-1, keepdims=True)
    return v / jnp.maximum(norm, jnp.finfo(v.dtype).tiny)
