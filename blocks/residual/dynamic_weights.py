"""What the streams of a token say about their own connections."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from blocks.norms.rmsnorm import RMSNorm
from blocks.residual.streams import wide


class DynamicWeights(nnx.Module):
    """scale * tanh(norm(x[s]) @ weight) for every stream s: added to learned numbers.

    Parameters (float32), role in brackets:
        weight  [width, n_columns]  init N(0, weight_std^2)            [mixing]
        scale   [2]  init scale_init; of all columns but the last, and
                of the last                                            [mixing]
        norm    norm(width), None for RMSNorm without a gain

    Computed in float32, or in the dtype of `x` where that is wider.

    Source: arXiv 2409.19606 section 2.2.
    """

    def __init__(
        self,
        width: int,
        n_columns: int,
        *,
        scale_init,
        has_tanh: bool,
        norm: Callable | None,
        weight_std=0.0,
        rngs: nnx.Rngs,
    ):
        f32 = jnp.float32
        if norm is None:
            self.norm = RMSNorm(width, gain="none", rngs=rngs)
        else:
            self.norm = norm(width, rngs=rngs)
        self.has_tanh = has_tanh
        weight = weight_std * jax.random.normal(rngs.params(), (width, n_columns), f32)
        self.weight = nnx.Param(weight.astype(f32), role="mixing")
        self.scale = nnx.Param(jnp.full((2,), scale_init, f32), role="mixing")

    def __call__(self, x: jax.Array) -> jax.Array:
        """[n_streams, tokens, width] -> [n_streams, n_columns, tokens]."""
        weight = self.weight[...]
        said = jnp.einsum("ntd,dk->ntk", self.norm(wide(x)), weight)
        if self.has_tanh:
            said = jnp.tanh(said)
        n_columns = weight.shape[-1]
        scale = self.scale[...][(np.arange(n_columns) == n_columns - 1).astype(int)]
        return jnp.swapaxes(scale * said, 1, 2)
