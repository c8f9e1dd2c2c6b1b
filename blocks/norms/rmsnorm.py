"""Root mean square normalization."""

import math

import jax
import jax.numpy as jnp
from flax import nnx

SMALLEST_EPS = 1e-24  # eps**-1.5, met at a zero vector, must stay a float32


class RMSNorm(nnx.Module):
    """Divides every token by its root mean square, without centring.

        y = gain * x / sqrt(mean(x^2) + eps)

    mean over the last axis. eps is inside the root; the multiplier never exceeds
    1 / sqrt(eps), so a token whose RMS is far below sqrt(eps) stays small.

    Arithmetic in float32, or in the dtype of `x` where that is wider: squares of
    float16 values above 255 overflow. The result is rounded to the dtype of `x`
    once, after the gain (as OLMo 2 and gpt-oss do; Llama rounds before the gain,
    which differs in half precision only). |x| must stay below about 1e19, where
    squares leave float32.

    Parameters (float32, whatever the activation dtype), role in brackets:
        gain  [d_model]  init 1  [gain]

    Source: arXiv 1910.07467 section 4.
    Departure: the paper has no eps and its torch code adds 1e-8 outside the root;
    inside, with 1e-6, is what released language models do.
    """

    traced = ()

    @staticmethod
    def check(*, eps: float = 1e-6) -> None:
        """Raises ValueError for an eps that cannot protect the root."""
        if not (math.isfinite(eps) and eps >= SMALLEST_EPS):
            raise ValueError(f"eps must be finite and >= {SMALLEST_EPS}, got {eps}")

    def __init__(self, d_model: int, *, eps: float = 1e-6, rngs: nnx.Rngs):
        """Args:
        d_model: size of the last axis of the input.
        eps: added to the mean square.
        rngs: unused (constant init); every normalizer takes it.
        """
        del rngs
        self.check(eps=eps)
        self.d_model = d_model
        self.eps = eps
        self.gain = nnx.Param(jnp.ones((d_model,), jnp.float32), role="gain")

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps [..., d_model] to [..., d_model] in the dtype of `x`."""
        if x.shape[-1] != self.d_model:
            raise ValueError(f"expected last axis {self.d_model}, got shape {x.shape}")
        wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
        mean_square = jnp.mean(jnp.square(wide), axis=-1, keepdims=True)
        y = self.gain[...] * (wide * jax.lax.rsqrt(mean_square + self.eps))
        return y.astype(x.dtype)
