"""A learned factor on the output of every head."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from blocks.linear import Linear


class HeadScale(nnx.Module):
    """y = scale[head] * heads, in the place of an attention's gate.

    The product is in float32 or wider, the result in the dtype of `heads`.

    Parameters (float32), role in brackets:
        scale  [n_heads]  init 1  [scale]

    Source: arXiv 2110.09456 section 2 (NormFormer).
    """

    traced = ()

    @staticmethod
    def check() -> None:
        """There is nothing to set."""

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        d_head: int,
        *,
        linear: Callable = Linear,
        rngs: nnx.Rngs,
    ):
        """Args:
        n_heads: of the attention. The others are not needed; every gate gets them.
        """
        del d_model, d_head, linear, rngs
        self.scale = nnx.Param(jnp.ones((n_heads,), jnp.float32), role="scale")

    def __call__(self, x: jax.Array, heads: jax.Array) -> jax.Array:
        """heads [tokens, n_heads * d_head] -> the same; `x` plays no part."""
        del x
        wide = jnp.promote_types(heads.dtype, jnp.float32)
        scale = self.scale[...].astype(wide)[:, None]
        y = scale * heads.astype(wide).reshape(len(heads), len(scale), -1)
        return y.reshape(heads.shape).astype(heads.dtype)
