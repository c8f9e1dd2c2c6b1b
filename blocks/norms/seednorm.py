"""Self-rescaled dynamic normalization (SeeDNorm): RMSNorm with a gain per token."""

import math

import jax
import jax.numpy as jnp
from flax import nnx

from blocks.norms.statistics import check_eps, scaled, widened


class SeeDNorm(nnx.Module):
    """RMSNorm whose gain moves with a learned direction of the token.

        y = (alpha * tanh(x . beta) + gain) * x / sqrt(mean(x^2) + eps)

    mean and dot product over the last axis: x . beta is one number per token, and keeps
    some of the scale that the division removes. It starts as RMSNorm, since beta is
    zero. In the first step alpha therefore has no gradient, and beta has one through
    alpha, which must not start at zero too. Not homogeneous in x, so a stream that
    grows moves every tanh towards its ends.

    Arithmetic in float32, or in the dtype of `x` where that is wider; the result is
    rounded to the dtype of `x` once. |x| must stay below about 1e19, where squares
    leave float32.

    Parameters (float32, whatever the activation dtype), role in brackets:
        gain   [d_model]  init 1             [gain]
        alpha  [d_model]  init `alpha_init`  [gain]   the part of the gain that moves
        beta   [d_model]  init 0             [alpha]  slope inside the tanh

    Source: arXiv 2510.22777. There is no official code, and its initial values are not
    known here: zero for beta, so as to start as RMSNorm, and one for alpha are ours.
    """

    traced = ("alpha_init",)

    @staticmethod
    def check(*, alpha_init: float = 1.0, eps: float = 1e-6) -> None:
        """Raises ValueError for an alpha that could not learn, or an eps too small."""
        if not math.isfinite(alpha_init) or alpha_init == 0:
            raise ValueError(
                f"alpha_init must be finite and not 0 (beta starts at 0, and neither "
                f"would get a gradient), got {alpha_init}"
            )
        check_eps(eps)

    def __init__(
        self,
        d_model: int,
        *,
        alpha_init: float = 1.0,
        eps: float = 1e-6,
        rngs: nnx.Rngs,
    ):
        """Args:
        d_model: size of the last axis of the input.
        alpha_init: initial alpha of all features; a number or a traced scalar.
        eps: added to the mean square.
        rngs: unused (constant init); every normalizer takes it.
        """
        del rngs
        self.check(eps=eps)
        f32 = jnp.float32
        self.d_model = d_model
        self.eps = eps
        self.gain = nnx.Param(jnp.ones((d_model,), f32), role="gain")
        self.alpha = nnx.Param(jnp.full((d_model,), alpha_init, f32), role="gain")
        self.beta = nnx.Param(jnp.zeros((d_model,), f32), role="alpha")

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps [..., d_model] to [..., d_model] in the dtype of `x`."""
        wide = widened(x, self.d_model)
        # Without "highest" accelerators round the factors of a product.
        along = jnp.matmul(wide, self.beta[...], precision="highest")[..., None]
        gain = self.alpha[...] * jnp.tanh(along) + self.gain[...]
        return (gain * scaled(wide, self.eps)).astype(x.dtype)
