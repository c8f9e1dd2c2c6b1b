"""Unit vectors at any scale, without an epsilon."""

import jax
import jax.numpy as jnp
from flax import nnx

from blocks.norms.statistics import widened


class UnitNorm(nnx.Module):
    """Makes every token a vector of length one; a zero token stays zero.

        y = gain * x / |x|

    There is no eps. The token is first divided by its largest entry, so that no square
    overflows or vanishes: the length is one from |x| = 1e-30 to 1e30. The largest entry
    cancels, and no gradient goes through it. At zero the gradient is defined as zero;
    elsewhere it is of the order 1 / |x|.

    Arithmetic in float32, or in the dtype of `x` where that is wider; the result is
    rounded to the dtype of `x` once.

    Parameters (float32, whatever the activation dtype), role in brackets:
        gain  [d_model]  init 1  [gain]  only if asked for

    Source: arXiv 2410.01131; NVIDIA/ngpt model.py, justnorm; the gain is its sqk, the
    factor on queries and keys, without that code's change of learning rate (sqk is
    stored at 1 / sqrt(d_model) there).
    Departure: the reference gives NaN for a zero vector.
    """

    traced = ()

    @staticmethod
    def check(*, gain: bool = False) -> None:
        """Every value of `gain` is valid."""

    def __init__(self, d_model: int, *, gain: bool = False, rngs: nnx.Rngs):
        """Args:
        d_model: size of the last axis of the input.
        gain: learns a scale.
        rngs: unused (constant init); every normalizer takes it.
        """
        del rngs
        self.d_model = d_model
        ones = jnp.ones((d_model,), jnp.float32)
        self.gain = nnx.Param(ones, role="gain") if gain else None

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps [..., d_model] to [..., d_model] in the dtype of `x`."""
        wide = widened(x, self.d_model)
        largest = jnp.max(jnp.abs(wide), axis=-1, keepdims=True)
        largest = jax.lax.stop_gradient(largest)
        # Below this number a reciprocal is no longer finite: such a token is zero.
        is_zero = largest < jnp.finfo(wide.dtype).tiny
        near_one = jnp.where(is_zero, 0, wide / jnp.where(is_zero, 1, largest))
        square = jnp.sum(jnp.square(near_one), axis=-1, keepdims=True)
        y = near_one * jax.lax.rsqrt(jnp.where(is_zero, 1, square))
        if self.gain is not None:
            y = self.gain[...] * y
        return y.astype(x.dtype)
