"""Normalization head by head."""

import jax
import jax.numpy as jnp
from flax import nnx

from blocks.checks import check_sizes
from blocks.norms.statistics import (
    centred_and_scaled,
    check_eps,
    check_groups,
    scaled,
    widened,
)


class HeadNorm(nnx.Module):
    """Divides every head of a token by its own root mean square.

        y_h = gain_h * x_h / sqrt(mean(x_h^2) + eps)

    x_h are the d_model / n_heads neighbouring features of head h. centred=True
    subtracts the mean of the head first and divides by its standard deviation, which
    is GroupNorm without a bias. For use where heads lie side by side, as the inner norm
    of attention; a norm of queries and keys is applied to single heads already.

    Arithmetic in float32, or in the dtype of `x` where that is wider; the result is
    rounded to the dtype of `x` once.

    Parameters (float32, whatever the activation dtype), role in brackets:
        gain  [d_model]            init 1  [gain]  one number per feature
              [d_model / n_heads]                  shared_gain: the same for all heads

    Source: arXiv 1803.08494 with the statistic of arXiv 1910.07467; a gain shared by
    the heads as in the query and key norms of Qwen3 (huggingface/transformers
    models/qwen3/modeling_qwen3.py).
    """

    traced = ()

    @staticmethod
    def check(
        *,
        n_heads: int = 4,
        eps: float = 1e-6,
        centred: bool = False,
        shared_gain: bool = False,
    ) -> None:
        """Raises ValueError for no heads, or an eps that cannot protect the root."""
        check_eps(eps)
        check_sizes(n_heads=n_heads)

    def __init__(
        self,
        d_model: int,
        *,
        n_heads: int = 4,
        eps: float = 1e-6,
        centred: bool = False,
        shared_gain: bool = False,
        rngs: nnx.Rngs,
    ):
        """Args:
            d_model: size of the last axis of the input.
            n_heads: heads of equal width.
            eps: added to the mean square (the variance) of a head.
            centred: subtracts the mean of the head.
            shared_gain: one gain for all heads.
            rngs: unused (constant init); every normalizer takes it.

        Raises:
            ValueError: d_model is not a multiple of n_heads.
        """
        del rngs
        self.check(n_heads=n_heads, eps=eps)
        check_groups("n_heads", n_heads, d_model)
        self.d_model = d_model
        self.n_heads = n_heads
        self.eps = eps
        self.centred = centred
        width = d_model // n_heads if shared_gain else d_model
        self.gain = nnx.Param(jnp.ones((width,), jnp.float32), role="gain")

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps [..., d_model] to [..., d_model] in the dtype of `x`."""
        d_head = self.d_model // self.n_heads
        heads = widened(x, self.d_model).reshape(*x.shape[:-1], self.n_heads, d_head)
        divide = centred_and_scaled if self.centred else scaled
        gain = self.gain[...].reshape(-1, d_head)  # [n_heads or 1, d_head]
        return (gain * divide(heads, self.eps)).reshape(x.shape).astype(x.dtype)
