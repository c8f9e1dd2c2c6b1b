"""ScaleNorm: a unit vector times one learned length."""

import math

import jax
import jax.numpy as jnp
from flax import nnx

from blocks.checks import check_finite
from blocks.norms.statistics import check_eps, reciprocal_root, widened


class ScaleNorm(nnx.Module):
    """Gives every token the same learned Euclidean length.

        y = scale * x / max(|x|, eps)

    One number for all features. At scale = sqrt(d_model) this is RMSNorm without gain
    and without eps: the clamp does not shrink tokens that are merely small.

    Arithmetic in float32, or in the dtype of `x` where that is wider; the result is
    rounded to the dtype of `x` once.

    Parameters (float32, whatever the activation dtype), role in brackets:
        scale  [1]  init `scale_init`, sqrt(d_model) if null  [gain]

    Source: arXiv 1910.05895; tnq177/transformers_without_tears layers.py.
    Departure: the clamp is on the square, max(|x|^2, eps^2), which is the same number
    and has a gradient at x = 0.
    """

    traced = ("scale_init",)

    @staticmethod
    def check(*, eps: float = 1e-5, scale_init: float | None = None) -> None:
        """Raises ValueError for an unsafe eps or a length that is not finite."""
        check_eps(eps, "clamp")
        if scale_init is not None:
            check_finite(scale_init=scale_init)

    def __init__(
        self,
        d_model: int,
        *,
        eps: float = 1e-5,
        scale_init: float | None = None,
        rngs: nnx.Rngs,
    ):
        """Args:
        d_model: size of the last axis of the input.
        eps: smallest length that is divided by.
        scale_init: initial length; a number or a traced scalar, None: sqrt(d_model).
        rngs: unused (constant init); every normalizer takes it.
        """
        del rngs
        self.check(eps=eps)
        self.d_model = d_model
        self.eps = eps
        start = math.sqrt(d_model) if scale_init is None else scale_init
        self.scale = nnx.Param(jnp.full((1,), start, jnp.float32), role="gain")

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps [..., d_model] to [..., d_model] in the dtype of `x`."""
        wide = widened(x, self.d_model)
        square = jnp.sum(jnp.square(wide), axis=-1, keepdims=True)
        y = wide * (self.scale[...] * reciprocal_root(square, self.eps, "clamp"))
        return y.astype(x.dtype)
