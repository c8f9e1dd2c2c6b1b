"""Dynamic erf (Derf): the error function in the place of a normalizer."""

import math

import jax
import jax.numpy as jnp
from flax import nnx


class Derf(nnx.Module):
    """Passes every feature through an error function of learned slope and offset.

        y = gain * erf(alpha * x + shift) + bias

    Tokens and features do not interact and the scale of `x` is not divided out;
    |y| <= |gain| + |bias|. erf(z) is close to tanh(1.205 z), so the DyT to compare
    with has 1.205 times this alpha.

    Arithmetic in float32, or in the dtype of `x` where that is wider; the result is
    rounded to the dtype of `x` once. In bfloat16 erf would reach 1 at z = 2.2.

    Parameters (float32, whatever the activation dtype), role in brackets:
        alpha  [1]        init `alpha_init`  [alpha]  slope at zero: 2 alpha / sqrt(pi)
        shift  [1]        init `shift_init`  [shift]
        gain   [d_model]  init 1             [gain]
        bias   [d_model]  init 0             [bias]

    Source: arXiv 2512.10938 section 5, equation 10; zlab-princeton/Derf
    ViT/dynamic_erf.py. 0.5 is the vision default; the paper's language models tuned
    it separately for attention and the rest.
    Departure: the reference computes in the input dtype.
    """

    traced = ("alpha_init", "shift_init")

    @staticmethod
    def check(*, alpha_init: float = 0.5, shift_init: float = 0.0) -> None:
        """Raises ValueError for a slope not positive, or anything not finite."""
        if not (math.isfinite(alpha_init) and alpha_init > 0):
            raise ValueError(
                f"alpha_init must be positive and finite, got {alpha_init}"
            )
        if not math.isfinite(shift_init):
            raise ValueError(f"shift_init must be finite, got {shift_init}")

    def __init__(
        self,
        d_model: int,
        *,
        alpha_init: float = 0.5,
        shift_init: float = 0.0,
        rngs: nnx.Rngs,
    ):
        """Args:
        d_model: size of the last axis of the input.
        alpha_init: initial slope; a number or a traced scalar.
        shift_init: initial offset inside erf; likewise.
        rngs: unused (constant init); every normalizer takes it.
        """
        del rngs
        f32 = jnp.float32
        self.d_model = d_model
        self.alpha = nnx.Param(jnp.full((1,), alpha_init, f32), role="alpha")
        self.shift = nnx.Param(jnp.full((1,), shift_init, f32), role="shift")
        self.gain = nnx.Param(jnp.ones((d_model,), f32), role="gain")
        self.bias = nnx.Param(jnp.zeros((d_model,), f32), role="bias")

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps [..., d_model] to [..., d_model] in the dtype of `x`."""
        if x.shape[-1] != self.d_model:
            raise ValueError(f"expected last axis {self.d_model}, got shape {x.shape}")
        wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
        z = self.alpha[...] * wide + self.shift[...]
        y = self.gain[...] * jax.lax.erf(z) + self.bias[...]
        return y.astype(x.dtype)
