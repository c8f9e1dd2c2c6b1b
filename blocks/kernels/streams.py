"""Residual streams read, and mixed and written, by one kernel each."""

import dataclasses

import jax
import jax.numpy as jnp

from blocks.kernels.blend import blend
from blocks.kernels.tiles import TILES


@dataclasses.dataclass(frozen=True)
class BlendedStreams:
    """`weighted` and `written` of `blocks.residual.streams` as kernels, the same values.

    On CUDA and TPU; compiled for anything else it is the plain form. Streams are in
    float32, bfloat16 or float16; sums are in float32, and rounded once.
    """

    # Platform whose kernel runs in Pallas's interpreter: to test it without a device.
    interpreted: str | None = None

    traced = ()

    @staticmethod
    def check(*, interpreted: str | None = None) -> None:
        if interpreted not in (None, *TILES):
            raise ValueError(
                f"interpreted must be null or one of {', '.join(TILES)}, "
                f"got {interpreted!r}"
            )

    def weighted(self, x: jax.Array, weights: jax.Array) -> jax.Array:
        """sum_s weights[s] x[s]: [tokens, d_model]; weights [n_streams, tokens or 1]."""
        weights = jnp.broadcast_to(weights, x.shape[:2])
        return blend(weights[None], (x,), self.interpreted)[0]

    def written(
        self, x: jax.Array, mixing: jax.Array, post: jax.Array, branch: jax.Array
    ) -> jax.Array:
        """mixing x + post branch: [n_streams, tokens, d_model].

        mixing [n_streams, n_streams, tokens or 1], post [n_streams, tokens or 1],
        branch [tokens, d_model], the same for every stream.
        """
        n, tokens, _ = x.shape
        mixing = jnp.broadcast_to(mixing, (n, n, tokens))
        post = jnp.broadcast_to(post, (n, tokens))
        weights = jnp.concatenate([mixing, post[:, None]], axis=1)
        return blend(weights, (x, branch[None].astype(x.dtype)), self.interpreted)
