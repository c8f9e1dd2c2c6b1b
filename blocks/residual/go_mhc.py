"""go-mHC: doubly stochastic stream mixing from squared blocks of a rotation."""

import jax
import jax.numpy as jnp

from blocks.keywords import with_keywords_of
from blocks.residual.generated import GeneratedStreams, check_generated
from blocks.residual.generated_joint import GeneratedJoint
from blocks.residual.orthogonal import cayley, skew


class GoMHCJoint(GeneratedJoint):
    """mixing[i, j] = sum of squares of block (i, j) of a rotation, divided by s."""

    def __init__(self, d_model: int, *, block_size: int, **keywords):
        super().__init__(d_model, **keywords)
        self.block_size = block_size

    def mixing(self, raw: jax.Array) -> jax.Array:
        n, s = self.n_streams, self.block_size
        rotation = cayley(skew(raw, n * s))
        squares = jnp.square(rotation).reshape(n, s, n, s, -1)
        return jnp.sum(squares, axis=(1, 3)) / s


class GoMHC(GeneratedStreams):
    """new = H_res x + H_post^T F(H_pre x), H_res generalized orthostochastic.

        Q = (I + A)^-1 (I - A)        A skew-symmetric [n s, n s], entries raw_res
        H_res[i, j] = |block (i, j) of Q|^2 / s        blocks [s, s], s = block_size

    Rows and columns of squares of a rotation sum to 1, so H_res is doubly stochastic
    without iterations, from n s (n s - 1) / 2 logits. s = 1 reaches the orthostochastic
    matrices, larger s more. raw_res starts at 0: H_res = I.
    H_pre, H_post, raw and the parameters as in `GeneratedJoint`.

    n_streams = 1 is the plain residual, without parameters.

    Source: arXiv 2604.02309 (s = 2 recommended there).
    Departure: initial values and the other maps are those of `blocks.residual.mhc.MHC`.
    Off-diagonal entries are squares, so H_res has no gradient in A at A = 0: phi must not
    start at 0.
    """

    traced = ("alpha_init", "phi_std")
    joint = GoMHCJoint

    @staticmethod
    @with_keywords_of(check_generated)
    def check(
        *, n_streams: int = 4, phi_std: float = 0.02, block_size: int = 2, **common
    ) -> None:
        check_generated(n_streams=n_streams, phi_std=phi_std, **common)
        if not 1 <= block_size <= 4:
            raise ValueError(f"block_size must be 1 to 4, got {block_size}")
        if phi_std == 0 and n_streams > 1:
            raise ValueError(
                f"phi_std must be above 0, got {phi_std}: H_res would stay the identity"
            )

    @with_keywords_of(GeneratedStreams.__init__)
    def __init__(self, *, block_size: int = 2, **common):
        """Args: as of `GeneratedStreams`, and
        block_size: s.
        """
        super().__init__(**common)
        self.block_size = block_size
        self.joint_keywords = {"block_size": block_size}

    def res_init(self) -> jax.Array:
        m = self.n_streams * self.block_size
        return jnp.zeros((m * (m - 1) // 2,), jnp.float32)
