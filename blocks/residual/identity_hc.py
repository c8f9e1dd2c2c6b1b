"""Hyper-connections that do not mix their streams: the control for mHC."""

import jax
import jax.numpy as jnp

from blocks.keywords import with_keywords_of
from blocks.residual.generated import (
    GeneratedStreams,
    check_coefficient_eps,
    check_generated,
)
from blocks.residual.generated_joint import GeneratedJoint
from blocks.residual.streams import written


class IdentityJoint(GeneratedJoint):
    """mixing = I, from no logits; not multiplied with."""

    def mixing(self, raw: jax.Array) -> jax.Array:
        del raw
        return jnp.eye(self.n_streams)[..., None]

    def coefficients(self, state: jax.Array):
        pre, post, mixing = super().coefficients(state)
        return pre, post + self.coefficient_eps, mixing

    def write(self, state: jax.Array, branch: jax.Array, kept, i: jax.Array):
        del i
        return written(state, None, kept["post"], [branch] * len(state))


class IdentityHC(GeneratedStreams):
    """new = x + H_post^T F(H_pre x): read and write weights of mHC, H_res = I.

        H_pre = sigmoid(raw_pre) + e   H_post = 2 sigmoid(raw_post) + e

    raw = alpha * (v' phi) + bias, as in `GeneratedJoint`, with
    2 n_streams coefficients and two gates. What mHC gains beyond it is due to mixing.

    n_streams = 1 is the plain residual, without parameters.

    Source: models/hy_v4 of huggingface/transformers (e = `coefficient_eps`, there 1e-6);
    ablation "Identity HC" of arXiv 2512.24880.
    Departure: e is 0 by default, so that with alpha 0 it starts as Pre-LN exactly.
    """

    traced = ("alpha_init", "phi_std")
    joint = IdentityJoint

    @staticmethod
    @with_keywords_of(check_generated)
    def check(*, coefficient_eps: float = 0.0, **common) -> None:
        check_generated(**common)
        check_coefficient_eps(coefficient_eps)

    @with_keywords_of(GeneratedStreams.__init__)
    def __init__(self, *, coefficient_eps: float = 0.0, **common):
        """Args: as of `GeneratedStreams`, and
        coefficient_eps: added to H_pre and H_post, and to the weights of a head.
        """
        super().__init__(**common)
        self.coefficient_eps = coefficient_eps

    def res_init(self) -> jax.Array:
        return jnp.zeros((0,), jnp.float32)
