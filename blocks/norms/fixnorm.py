"""FixNorm: embeddings of one fixed length."""

import math

import jax
import jax.numpy as jnp
from flax import nnx

from blocks.norms.statistics import check_eps, reciprocal_root, widened


class FixNorm(nnx.Module):
    """Gives every token the Euclidean length sqrt(d_model); nothing is learned.

        y = sqrt(d_model) * x / max(|x|, eps)

    Meant for the embedding norm. Looking a row up and then normalizing it is the same
    as looking it up in a table with normalized rows, gradients included, so the table
    learns directions only.

    Arithmetic in float32, or in the dtype of `x` where that is wider; the result is
    rounded to the dtype of `x` once.

    Parameters: none.

    Source: arXiv 1910.05895; tnq177/transformers_without_tears model.py, which
    multiplies the unit rows by sqrt(d_model).
    Departure: there the normalized table is the output projection too; here a tied
    head uses the table as it is.
    """

    traced = ()

    @staticmethod
    def check(*, eps: float = 1e-12) -> None:
        """Raises ValueError for an eps whose powers leave float32."""
        check_eps(eps, "clamp")

    def __init__(self, d_model: int, *, eps: float = 1e-12, rngs: nnx.Rngs):
        """Args:
        d_model: size of the last axis of the input.
        eps: smallest length that is divided by.
        rngs: unused; every normalizer takes it.
        """
        del rngs
        self.check(eps=eps)
        self.d_model = d_model
        self.eps = eps

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps [..., d_model] to [..., d_model] in the dtype of `x`."""
        wide = widened(x, self.d_model)
        square = jnp.sum(jnp.square(wide), axis=-1, keepdims=True)
        length = math.sqrt(self.d_model)
        y = wide * (length * reciprocal_root(square, self.eps, "clamp"))
        return y.astype(x.dtype)
