"""NorMuon: Muon whose neurons take steps of equal length."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from blocks.keywords import with_keywords_of
from experiments.optimizers import common
from experiments.optimizers.muon import Muon
from experiments.optimizers.scale_by_muon import averaged, on_kernels, scaled_by_shape

TINY = 1e-10  # of the reference, in both quotients


class NorMuon(Muon):
    """Muon, divided neuron by neuron by the running size of its orthogonal update.

        O = orthogonal(H)                    H: `scale_by_muon`
        v <- b2 v + (1 - b2) mean(O^2 over the inputs)      one per output, from zero
        O' = O / (sqrt(v) + 1e-10)
        u = s * O' * ||O||_F / (||O'||_F + 1e-10)

    Copies never mix. The rest is `Muon`.

    Args:
        b2: decay per step of v.
        the others: of `Muon`.

    Source: arXiv 2510.05491; zichongli5/NorMuon normuon.py.
    """

    group = "normuon"
    is_orthogonal = False  # of its singular values only the sum of squares is kept
    traced = (*Muon.traced, "b2")

    @staticmethod
    @with_keywords_of(Muon.check)
    def check(*, b2: float = 0.95, **others) -> None:
        """Refuses values before anything is traced or compiled."""
        Muon.check(**others)
        common.check_decay_rate(b2=b2)

    @with_keywords_of(Muon.__init__)
    def __init__(self, *, b2: float = 0.95, **others):
        super().__init__(**others)
        self.b2 = b2

    def matrix_rule(self, number: common.Number) -> optax.GradientTransformation:
        """Muon's rule with `normalised_neurons` in the middle."""
        return optax.chain(
            averaged(number(self.momentum), nesterov=self.nesterov),
            on_kernels(self.iteration),
            normalised_neurons(number(self.b2)),
            scaled_by_shape(self.scale),
        )


class NeuronState(NamedTuple):
    """v: mean square per output neuron, [..., 1, d_out]."""

    v: optax.Updates


def normalised_neurons(b2) -> optax.GradientTransformation:
    """O -> O' of `NorMuon`, as long as O; kernels are [..., d_in, d_out]."""

    def init(params):
        return NeuronState(
            jax.tree.map(lambda p: jnp.zeros_like(p[..., :1, :]), params)
        )

    def update(updates, state, params=None):
        del params

        def second(v, o):
            return b2 * v + (1 - b2) * jnp.mean(jnp.square(o), axis=-2, keepdims=True)

        def divided(o, v):
            new = o / (jnp.sqrt(v) + TINY)
            return new * (_length(o) / (_length(new) + TINY))

        v = jax.tree.map(second, state.v, updates)
        return jax.tree.map(divided, updates, v), NeuronState(v)

    return optax.GradientTransformation(init, update)


def _length(x):
    return jnp.linalg.norm(x, axis=(-2, -1), keepdims=True)
