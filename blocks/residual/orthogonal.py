"""Orthogonal stream mixing by the Cayley transform."""

import jax
import jax.numpy as jnp

from blocks.residual.generated import GeneratedStreams
from blocks.residual.generated_joint import GeneratedJoint


def skew(raw: jax.Array, n: int) -> jax.Array:
    """[n (n - 1) / 2, tokens] -> skew-symmetric [n, n, tokens].

    The entries above the diagonal, row by row.
    """
    rows, columns = jnp.triu_indices(n, 1)
    upper = jnp.zeros((n, n, raw.shape[-1]), raw.dtype).at[rows, columns].set(raw)
    return upper - upper.transpose(1, 0, 2)


def cayley(a: jax.Array) -> jax.Array:
    """(I + A)^-1 (I - A) of skew-symmetric [n, n, tokens]: rotations.

    I + A is never singular. Solved with exchange of rows: eliminating without, which is
    possible too, is off by 7e-4 in float32 where entries are about 100 (n = 4), this by
    7e-6. It takes 1.7 ms against 0.4 ms for 1024 tokens and their gradient, on CPU.
    """
    tokens_first = a.transpose(2, 0, 1)
    eye = jnp.eye(len(a), dtype=a.dtype)
    rotations = jnp.linalg.solve(eye + tokens_first, eye - tokens_first)
    return rotations.transpose(1, 2, 0)


class OrthogonalJoint(GeneratedJoint):
    """mixing = Cayley(skew(raw_res)), from n (n - 1) / 2 logits."""

    def mixing(self, raw: jax.Array) -> jax.Array:
        return cayley(skew(raw, self.n_streams))


class Orthogonal(GeneratedStreams):
    """new = H_res x + H_post^T F(H_pre x), H_res a rotation of the streams.

        H_res = (I + A)^-1 (I - A)      A skew-symmetric, entries raw_res

    H_pre, H_post, raw and the parameters as in `GeneratedJoint`. Every singular value of
    H_res is 1, at any depth: streams are never averaged away. Entries may be negative,
    rows do not sum to 1, and the mean of the streams is not kept. raw_res starts at 0:
    H_res = I.

    n_streams = 1 is the plain residual, without parameters.

    Source: the orthogonal variant of arXiv 2602.18308 (JPmHC).
    Departure: there the transform is iterated; here it is solved for exactly. Initial
    values and the other maps are those of `blocks.residual.mhc.MHC`.
    """

    traced = ("alpha_init", "phi_std")
    joint = OrthogonalJoint

    def res_init(self) -> jax.Array:
        n = self.n_streams
        return jnp.zeros((n * (n - 1) // 2,), jnp.float32)
