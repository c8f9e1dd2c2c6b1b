"""mHC-lite: stream mixing as a convex combination of permutations."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np

from blocks.checks import check_finite
from blocks.keywords import with_keywords_of
from blocks.residual.generated import GeneratedStreams, check_generated
from blocks.residual.generated_joint import GeneratedJoint

MOST_STREAMS = 6  # 720 permutations; 5040 logits for every token are too many


def permutations(n: int) -> np.ndarray:
    """All n! permutation matrices [n!, n, n]; the first is the identity."""
    orders = np.array(list(itertools.permutations(range(n))))
    return np.eye(n, dtype=np.float32)[orders]


class MHCLiteJoint(GeneratedJoint):
    """mixing = sum_k softmax(raw_res)_k P_k over all permutation matrices."""

    def mixing(self, raw: jax.Array) -> jax.Array:
        n = self.n_streams
        weights = jax.nn.softmax(raw, axis=0)  # [n!, tokens]
        matrices = jnp.asarray(permutations(n).reshape(-1, n * n), weights.dtype)
        # Entries of 0 and 1: a product of half precision would lose digits of weights.
        product = jnp.matmul(matrices.T, weights, precision="highest")
        return product.reshape(n, n, -1)


class MHCLite(GeneratedStreams):
    """new = H_res x + H_post^T F(H_pre x), H_res = sum_k softmax(raw_res)_k P_k.

    P_k: the n_streams! permutation matrices, identity first (Birkhoff: their convex
    combinations are all doubly stochastic matrices). Rows and columns sum to 1 up to
    rounding, without iterations; logits grow as n_streams!, so at most 6 streams.
    H_pre, H_post, raw and the parameters as in `GeneratedJoint`.

    n_streams = 1 is the plain residual, without parameters.

    Initial values: phi 0, H_pre and H_post one-hot (biases +1 and -1), raw_res 0 for the
    identity and `other_init` for the rest.

    Source: arXiv 2601.05732, FFTYYY/mhc-lite. The gain 1 + gamma of its norm over the
    flattened streams is absorbed in phi.
    Departure: streams are averaged at the end, there added up.
    """

    traced = ("alpha_init", "phi_std", "other_init")
    joint = MHCLiteJoint

    @staticmethod
    @with_keywords_of(check_generated)
    def check(
        *,
        n_streams: int = 4,
        start: str = "onehot",
        phi_std: float = 0.0,
        other_init: float = -8.0,
        **common,
    ) -> None:
        check_generated(n_streams=n_streams, start=start, phi_std=phi_std, **common)
        if n_streams > MOST_STREAMS:
            raise ValueError(
                f"n_streams must be at most {MOST_STREAMS} for mHC-lite, which has a "
                f"logit for each of n_streams! permutations, got {n_streams}"
            )
        check_finite(other_init=other_init)

    @with_keywords_of(GeneratedStreams.__init__)
    def __init__(
        self,
        *,
        start: str = "onehot",
        phi_std: float = 0.0,
        other_init: float = -8.0,
        **common,
    ):
        """Args: as of `GeneratedStreams`, and
        other_init: initial logit of every permutation but the identity.
        """
        super().__init__(start=start, phi_std=phi_std, **common)
        self.other_init = other_init

    def res_init(self) -> jax.Array:
        is_identity = jnp.arange(math.factorial(self.n_streams)) == 0
        return jnp.where(is_identity, 0.0, self.other_init)
