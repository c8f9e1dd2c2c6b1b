"""Layer normalization inside groups of features."""

import jax
import jax.numpy as jnp
from flax import nnx

from blocks.checks import check_sizes
from blocks.norms.statistics import (
    centred_and_scaled,
    check_eps,
    check_groups,
    widened,
)


class GroupNorm(nnx.Module):
    """Centres and scales every group of neighbouring features of a token.

        y = gain * (x - mean_g) / sqrt(var_g + eps) + bias

    Group g holds features g * d_model / n_groups onwards. mean_g and var_g are taken
    inside one token: nothing is pooled over positions, as a GroupNorm for images
    would. n_groups=1 is LayerNorm. Groups of two features keep only the sign of the
    difference.

    Arithmetic in float32, or in the dtype of `x` where that is wider; the result is
    rounded to the dtype of `x` once.

    Parameters (float32, whatever the activation dtype), role in brackets:
        gain  [d_model]  init 1  [gain]
        bias  [d_model]  init 0  [bias]

    Source: arXiv 1803.08494 section 3, on the features of one token.
    """

    traced = ()

    @staticmethod
    def check(*, n_groups: int = 4, eps: float = 1e-6, bias: bool = True) -> None:
        """Raises ValueError for no groups, or an eps that cannot protect the root."""
        check_eps(eps)
        check_sizes(n_groups=n_groups)

    def __init__(
        self,
        d_model: int,
        *,
        n_groups: int = 4,
        eps: float = 1e-6,
        bias: bool = True,
        rngs: nnx.Rngs,
    ):
        """Args:
            d_model: size of the last axis of the input.
            n_groups: groups of equal width.
            eps: added to the variance of a group.
            bias: learns an offset.
            rngs: unused (constant init); every normalizer takes it.

        Raises:
            ValueError: d_model is not a multiple of n_groups.
        """
        del rngs
        self.check(n_groups=n_groups, eps=eps)
        check_groups("n_groups", n_groups, d_model)
        self.d_model = d_model
        self.n_groups = n_groups
        self.eps = eps
        zeros = jnp.zeros((d_model,), jnp.float32)
        self.gain = nnx.Param(jnp.ones((d_model,), jnp.float32), role="gain")
        self.bias = nnx.Param(zeros, role="bias") if bias else None

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps [..., d_model] to [..., d_model] in the dtype of `x`."""
        wide = widened(x, self.d_model)
        groups = wide.reshape(*x.shape[:-1], self.n_groups, -1)
        y = self.gain[...] * centred_and_scaled(groups, self.eps).reshape(x.shape)
        if self.bias is not None:
            y = y + self.bias[...]
        return y.astype(x.dtype)
