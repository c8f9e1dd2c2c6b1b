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

    As 2 (I + A)^-1 - I, where the large entries of A stand on one side of the equations
    only. I + A is never singular: its singular values are at least 1. By Householder's
    reflections, unrolled over the n columns and side by side over tokens: eliminating
    without an exchange of rows is off by 7e-4 in float32 where entries are about 100
    (n = 4), and LAPACK takes a token at a time (`blocks.matrixwise`).
    """
    n = len(a)
    eye = jnp.eye(n, dtype=a.dtype)[..., None]
    ones = jnp.broadcast_to(eye, a.shape)
    both = jnp.concatenate([eye + a, ones], axis=1)  # the equations, [n, 2 n, tokens]
    for i in range(n - 1):
        x = both[i:, i]
        v = x.at[0].add(jnp.copysign(jnp.sqrt(jnp.sum(jnp.square(x), axis=0)), x[0]))
        v = (v * jnp.sqrt(2 / jnp.sum(jnp.square(v), axis=0)))[:, None]
        below = both[i:]
        reflected = below - v * jnp.sum(v * below, axis=0)
        both = jnp.concatenate([both[:i], reflected])
    solved = [None] * n
    for i in reversed(range(n)):
        known = sum(both[i, j] * solved[j] for j in range(i + 1, n))
        solved[i] = (both[i, n:] - known) / both[i, i]
    q = 2 * jnp.stack(solved) - eye
    # One step of Newton's towards the nearest rotation: what the solution lost.
    gram = _times(q.transpose(1, 0, 2), q)
    return _times(q, 1.5 * eye - 0.5 * gram)


def _times(x: jax.Array, y: jax.Array) -> jax.Array:
    """The products of small matrices [n, n, tokens], in the order of their memory."""
    return jnp.sum(x[:, :, None] * y, axis=1)


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
