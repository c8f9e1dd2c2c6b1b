"""Root mean square normalization by a part of the features."""

import jax
import jax.numpy as jnp
from flax import nnx

from blocks.norms.statistics import check_eps, reciprocal_root, widened


class PRMSNorm(nnx.Module):
    """Divides every token by the root mean square of its first features.

        y = gain * x / sqrt(mean(x_1^2 ... x_k^2) + eps),      k = int(p * d_model)

    Features after the k-th are divided but not counted, so the output is not bounded,
    and only the first k features influence the others.

    Arithmetic in float32, or in the dtype of `x` where that is wider; the result is
    rounded to the dtype of `x` once.

    Parameters (float32, whatever the activation dtype), role in brackets:
        gain  [d_model]  init 1  [gain]

    Source: arXiv 1910.07467 section 4 (pRMSNorm); bzhangGo/rmsnorm
    rmsnorm_torch.py, argument p. That file adds eps outside the root
    (eps_mode=outside), the TensorFlow one beside it inside.
    """

    traced = ()

    @staticmethod
    def check(
        *, p: float = 0.0625, eps: float = 1e-8, eps_mode: str = "inside"
    ) -> None:
        """Raises ValueError for a fraction outside ]0, 1], or an unsafe eps."""
        check_eps(eps, eps_mode)
        if not 0 < p <= 1:
            raise ValueError(f"p must be above 0 and at most 1, got {p}")

    def __init__(
        self,
        d_model: int,
        *,
        p: float = 0.0625,
        eps: float = 1e-8,
        eps_mode: str = "inside",
        rngs: nnx.Rngs,
    ):
        """Args:
            d_model: size of the last axis of the input.
            p: fraction of the features that are counted.
            eps: added to the mean square, or as `eps_mode` says.
            eps_mode: inside, outside or clamp.
            rngs: unused (constant init); every normalizer takes it.

        Raises:
            ValueError: the fraction of this width is less than one feature.
        """
        del rngs
        self.check(p=p, eps=eps, eps_mode=eps_mode)
        self.d_model = d_model
        self.n_counted = int(p * d_model)
        if self.n_counted < 1:
            raise ValueError(
                f"p * d_model must be at least one feature, got {p} * {d_model}"
            )
        self.eps = eps
        self.eps_mode = eps_mode
        self.gain = nnx.Param(jnp.ones((d_model,), jnp.float32), role="gain")

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps [..., d_model] to [..., d_model] in the dtype of `x`."""
        wide = widened(x, self.d_model)
        counted = jnp.square(wide[..., : self.n_counted])
        mean_square = jnp.mean(counted, axis=-1, keepdims=True)
        y = wide * reciprocal_root(mean_square, self.eps, self.eps_mode)
        return (self.gain[...] * y).astype(x.dtype)
