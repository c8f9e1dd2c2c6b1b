"""Manifold-constrained hyper-connections (mHC): doubly stochastic stream mixing."""

import jax
import jax.numpy as jnp

from blocks.checks import check_finite, check_sizes
from blocks.keywords import with_keywords_of
from blocks.residual.generated import (
    GeneratedStreams,
    check_coefficient_eps,
    check_generated,
)
from blocks.residual.generated_joint import GeneratedJoint
from blocks.residual.sinkhorn import sinkhorn


class MHCJoint(GeneratedJoint):
    """mixing = Sinkhorn(raw_res), n_streams^2 logits in row-major order."""

    def __init__(self, d_model: int, *, iterations: int, **keywords):
        super().__init__(d_model, **keywords)
        self.iterations = iterations

    def mixing(self, raw: jax.Array) -> jax.Array:
        logits = raw.reshape(self.n_streams, self.n_streams, -1)
        return sinkhorn(logits, self.iterations, eps=self.coefficient_eps)


class MHC(GeneratedStreams):
    """new = H_res x + H_post^T F(H_pre x), H_res doubly stochastic.

        H_pre = sigmoid(raw_pre)   H_post = 2 sigmoid(raw_post)
        H_res = Sinkhorn(raw_res): columns, then rows divided by their sums, 20 times

    raw = alpha * (v' phi) + bias from the flattened streams of the token; parameters,
    and the dtype of the arithmetic, in `GeneratedJoint`. new[i] = sum_j H_res[i, j] x[j]:
    the rows of H_res, which sum to 1 exactly, are the forward gain; columns the backward.

    Initial values. alpha is 0.01 (the paper). The paper gives no others; here phi is
    N(0, 0.02^2), H_pre 1 / n_streams, H_post 1, and H_res has logits 0 on the diagonal
    and `off_diagonal_init` elsewhere (-8: 0.999 on the diagonal at n_streams 4). But for
    what alpha lets through, streams that are copies then make a plain Pre-LN network.
    Something must break the symmetry between streams, or they stay copies for ever:
    either phi (start "uniform" with phi_std > 0), or the biases (start "onehot").

    n_streams = 1 is the plain residual, without parameters.

    `coefficient_eps` is hc_eps of DeepSeek-V4, added to H_pre and in Sinkhorn; the paper
    has none.

    Source: arXiv 2512.24880 equations 7 to 9; start "onehot": FFTYYY/mhc-lite;
    uniform: models/hy_v4 of huggingface/transformers (H_pre).
    Departure: the streams are averaged at the end (`reduce`), where the paper follows
    hyper-connections, which add them up; the final norm removes that factor.
    """

    traced = ("alpha_init", "phi_std", "off_diagonal_init")
    joint = MHCJoint

    @staticmethod
    @with_keywords_of(check_generated)
    def check(
        *,
        iterations: int = 20,
        off_diagonal_init: float = -8.0,
        coefficient_eps: float = 0.0,
        **common,
    ) -> None:
        check_generated(**common)
        check_coefficient_eps(coefficient_eps)
        check_sizes(iterations=iterations)
        check_finite(off_diagonal_init=off_diagonal_init)

    @with_keywords_of(GeneratedStreams.__init__)
    def __init__(
        self,
        *,
        iterations: int = 20,
        off_diagonal_init: float = -8.0,
        coefficient_eps: float = 0.0,
        kernel=None,
        **common,
    ):
        """Args: as of `GeneratedStreams`, and
        iterations: of Sinkhorn, each columns and rows.
        off_diagonal_init: initial logit of what a stream takes from another.
        coefficient_eps: added in H_pre, in Sinkhorn, and to the weights of a head.
        kernel: what reads and writes the streams, as
            `blocks.kernels.streams.BlendedStreams`; None for plain JAX.
        """
        super().__init__(**common)
        self.off_diagonal_init = off_diagonal_init
        self.coefficient_eps = coefficient_eps
        self.joint_keywords = {"iterations": iterations, "kernel": kernel}

    def res_init(self) -> jax.Array:
        diagonal = jnp.eye(self.n_streams, dtype=bool)
        return jnp.where(diagonal, 0.0, self.off_diagonal_init).reshape(-1)
