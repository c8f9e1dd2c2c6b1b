"""Dynamic tanh (DyT): a pointwise replacement for a normalization layer."""

import math

import jax
import jax.numpy as jnp
from flax import nnx


class DyT(nnx.Module):
    """Squashes every feature with a tanh of learned slope.

        y = gain * tanh(alpha * x) + bias

    No statistic is taken over any axis: the scale of `x` is not divided out, and
    |y| <= |gain| + |bias|. Far in the tails (|alpha * x| > 9 in float32) the
    gradient is exactly zero.

    Arithmetic in float32, or in the dtype of `x` where that is wider; the result is
    rounded to the dtype of `x` once.

    Parameters (float32, whatever the activation dtype), role in brackets:
        alpha  [1]        init `alpha_init`  [alpha]
        gain   [d_model]  init 1             [gain]
        bias   [d_model]  init 0             [bias]

    Source: arXiv 2503.10622 section 4; jiachenzhu/DyT dynamic_tanh.py. For language
    models the paper tunes alpha_init by site and width (0.8 attention, 0.2 elsewhere
    at width 4096) and scales the embedding by a learned scalar that starts at
    sqrt(d_model).
    Departure: the reference computes in the input dtype.
    """

    traced = ("alpha_init",)

    @staticmethod
    def check(*, alpha_init: float = 0.5) -> None:
        """Raises ValueError for a slope that is not positive and finite."""
        if not (math.isfinite(alpha_init) and alpha_init > 0):
            raise ValueError(
                f"alpha_init must be positive and finite, got {alpha_init}"
            )

    def __init__(self, d_model: int, *, alpha_init: float = 0.5, rngs: nnx.Rngs):
        """Args:
        d_model: size of the last axis of the input.
        alpha_init: initial slope; a number or a traced scalar.
        rngs: unused (constant init); every normalizer takes it.
        """
        del rngs
        f32 = jnp.float32
        self.d_model = d_model
        self.alpha = nnx.Param(jnp.full((1,), alpha_init, f32), role="alpha")
        self.gain = nnx.Param(jnp.ones((d_model,), f32), role="gain")
        self.bias = nnx.Param(jnp.zeros((d_model,), f32), role="bias")

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps [..., d_model] to [..., d_model] in the dtype of `x`."""
        if x.shape[-1] != self.d_model:
            raise ValueError(f"expected last axis {self.d_model}, got shape {x.shape}")
        wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
        y = self.gain[...] * jnp.tanh(self.alpha[...] * wide) + self.bias[...]
        return y.astype(x.dtype)
