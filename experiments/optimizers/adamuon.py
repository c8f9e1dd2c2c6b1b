"""AdaMuon: the orthogonalised sign of the momentum, divided as Adam divides."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from blocks.keywords import with_keywords_of
from experiments.optimizers import common
from experiments.optimizers.hidden import HiddenMatrices
from experiments.optimizers.newton_schulz import QUINTIC, Polynomials
from experiments.optimizers.scale_by_muon import averaged, on_kernels

TINY = 1e-8  # of the reference, in both quotients


class AdaMuon(HiddenMatrices):
    """A second moment of the orthogonal update, entry by entry; RMS of a step 0.2.

        O = orthogonal(sign(H))              H: `scale_by_muon`, b its momentum
        v <- b v + (1 - b) O^2               entry by entry, no bias correction
        U = O / (sqrt(v) + 1e-8)
        u = 0.2 sqrt(d_in d_out) U / (||U||_F + 1e-8)

    Learning rates are AdamW's. Copies never mix. The sign of a zero is zero.

    Args:
        momentum, nesterov, iteration: as in `Muon`.
        the others: of `HiddenMatrices`.

    Source: arXiv 2507.11005; Chongjie-Si/AdaMuon gpt2/models/optimizers/adamuon.py.
    """

    group = "adamuon"
    traced = (*HiddenMatrices.traced, "momentum")

    @staticmethod
    @with_keywords_of(HiddenMatrices.check)
    def check(
        *,
        learning_rate: float = 1e-3,
        momentum: float = 0.95,
        nesterov: bool = True,
        iteration: Polynomials | None = None,
        **others,
    ) -> None:
        """Refuses values before anything is traced or compiled."""
        del nesterov, iteration
        HiddenMatrices.check(learning_rate=learning_rate, **others)
        common.check_decay_rate(momentum=momentum)

    @with_keywords_of(HiddenMatrices.__init__)
    def __init__(
        self,
        *,
        learning_rate: float = 1e-3,
        momentum: float = 0.95,
        nesterov: bool = True,
        iteration: Polynomials | None = None,
        **others,
    ):
        super().__init__(learning_rate=learning_rate, **others)
        self.momentum = momentum
        self.nesterov = nesterov
        self.iteration = iteration or QUINTIC

    def matrix_rule(self, number: common.Number) -> optax.GradientTransformation:
        """Sign, orthogonalise, divide."""
        momentum = number(self.momentum)
        return optax.chain(
            averaged(momentum, nesterov=self.nesterov),
            on_kernels(lambda h: self.iteration(jnp.sign(h))),
            divided_by_second_moment(momentum),
        )


class EntryState(NamedTuple):
    """v: mean square of every entry of the update."""

    v: optax.Updates


def divided_by_second_moment(b) -> optax.GradientTransformation:
    """O -> u of `AdaMuon`; kernels are [..., d_in, d_out]."""

    def init(params):
        return EntryState(jax.tree.map(jnp.zeros_like, params))

    def update(updates, state, params=None):
        del params

        def divided(o, v):
            u = o / (jnp.sqrt(v) + TINY)
            length = jnp.linalg.norm(u, axis=(-2, -1), keepdims=True)
            return u * (0.2 * (u.shape[-2] * u.shape[-1]) ** 0.5 / (length + TINY))

        v = jax.tree.map(lambda v, o: b * v + (1 - b) * o**2, state.v, updates)
        return jax.tree.map(divided, updates, v), EntryState(v)

    return optax.GradientTransformation(init, update)
