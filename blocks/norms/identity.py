"""No normalizer: the control."""

import jax
from flax import nnx

from blocks.norms.statistics import widened


class Identity(nnx.Module):
    """Hands its input on: y = x.

    Parameters: none. What a block does without a normalizer, at a site that the
    placement has. (To take the site away choose another placement.)
    """

    traced = ()

    @staticmethod
    def check() -> None:
        """There is nothing to refuse."""

    def __init__(self, d_model: int, *, rngs: nnx.Rngs):
        """Args:
        d_model: size of the last axis of the input.
        rngs: unused; every normalizer takes it.
        """
        del rngs
        self.d_model = d_model

    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns `x`, after the same check of its width as everywhere."""
        widened(x, self.d_model)
        return x
