"""Bounded hyperbolic tanh (BHyT): a tanh that sees the scale of its token."""

import jax
import jax.numpy as jnp
from flax import nnx

from blocks.checks import check_positive
from blocks.norms.statistics import check_eps, widened


class BHyT(nnx.Module):
    """Squashes every feature, measured in root mean squares of its token.

        y = gain * tanh(lam * x / (kappa * sqrt(mean(x^2) + eps)))

    mean over the last axis. Bounded as DyT, |y| <= |gain|, and like RMSNorm blind to
    the scale of the token: the tanh never saturates because the stream has grown. With
    lam / kappa = 0.2 it is nearly linear, and the RMS of y begins at about 0.19.

    Arithmetic in float32, or in the dtype of `x` where that is wider; the result is
    rounded to the dtype of `x` once. |x| must stay below about 1e19, where squares
    leave float32.

    Parameters (float32, whatever the activation dtype), role in brackets:
        lam   [1]        init `lam_init`  [alpha]
        gain  [d_model]  init 1           [gain]

    Source: arXiv 2601.09719; MLAI-Yonsei/BHyT models/hf_src/llama/modeling_llama.py,
    class BHyT_Star, the variant with exact statistics (the cheaper one predicts the
    second mean square of a block from the first).
    Departure: the reference squares in the input dtype, and rounds before the gain.
    """

    traced = ("lam_init",)

    @staticmethod
    def check(*, lam_init: float = 2.0, kappa: float = 10.0, eps: float = 1e-6) -> None:
        """Raises ValueError for a slope not positive, or an eps too small."""
        check_positive(lam_init=lam_init, kappa=kappa)
        check_eps(eps)

    def __init__(
        self,
        d_model: int,
        *,
        lam_init: float = 2.0,
        kappa: float = 10.0,
        eps: float = 1e-6,
        rngs: nnx.Rngs,
    ):
        """Args:
        d_model: size of the last axis of the input.
        lam_init: initial lam; a number or a traced scalar.
        kappa: divides lam, for good.
        eps: added to the mean square.
        rngs: unused (constant init); every normalizer takes it.
        """
        del rngs
        self.check(kappa=kappa, eps=eps)
        f32 = jnp.float32
        self.d_model = d_model
        self.kappa = kappa
        self.eps = eps
        self.lam = nnx.Param(jnp.full((1,), lam_init, f32), role="alpha")
        self.gain = nnx.Param(jnp.ones((d_model,), f32), role="gain")

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps [..., d_model] to [..., d_model] in the dtype of `x`."""
        wide = widened(x, self.d_model)
        mean_square = jnp.mean(jnp.square(wide), axis=-1, keepdims=True)
        slope = self.lam[...] * (jax.lax.rsqrt(mean_square + self.eps) / self.kappa)
        y = self.gain[...] * jnp.tanh(slope * wide)
        return y.astype(x.dtype)
