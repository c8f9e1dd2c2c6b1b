"""Gated feed-forward network with a SiLU gate."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from blocks.linear import Linear


class SwiGLU(nnx.Module):
    """y = down(inner_norm(silu(gate(x)) * up(x))),  silu(z) = z * sigmoid(z).

    silu and the product are evaluated in float32, or in the dtype of `x` where that
    is wider, and rounded to the dtype of `x` once (Llama rounds after silu too, which
    differs in half precision only). A product above 65504 is infinite in float16.

    Three matrices: at equal parameters d_ff is 2/3 of that of a two-matrix network.

    Sub-modules:
        gate        Linear [d_model, d_ff]   use "hidden"
        up          Linear [d_model, d_ff]   use "hidden"
        down        Linear [d_ff, d_model]   use "output"
        inner_norm  inner_norm(d_ff), or None

    Source: arXiv 2002.05202 equation 6; transformers 5.24.0 LlamaMLP.
    """

    traced = ()

    @staticmethod
    def check(*, bias: bool = False) -> None:
        """Every value of `bias` is valid."""

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        *,
        bias: bool = False,
        inner_norm: Callable | None = None,
        linear: Callable = Linear,
        rngs: nnx.Rngs,
    ):
        """Args:
        d_model: width of the residual stream.
        d_ff: inner width.
        bias: all three linear maps learn an offset.
        inner_norm: inner_norm(d_ff, rngs=rngs) makes a normalizer.
        linear: linear(d_in, d_out, use=..., bias=..., rngs=...) makes a map.
        rngs: gives the keys.
        """
        self.gate = linear(d_model, d_ff, use="hidden", bias=bias, rngs=rngs)
        self.up = linear(d_model, d_ff, use="hidden", bias=bias, rngs=rngs)
        self.inner_norm = None if inner_norm is None else inner_norm(d_ff, rngs=rngs)
        self.down = linear(d_ff, d_model, use="output", bias=bias, rngs=rngs)

    def __call__(self, x: jax.Array, shape: tuple[int, int] | None = None) -> jax.Array:
        """Maps [tokens, d_model] to the same shape in the dtype of `x`.

        `shape`, (batch, seq), says how tokens form sequences; tokens do not meet here.
        """
        del shape
        wide = jnp.promote_types(x.dtype, jnp.float32)
        gate, up = self.gate(x).astype(wide), self.up(x).astype(wide)
        h = (jax.nn.silu(gate) * up).astype(x.dtype)
        if self.inner_norm is not None:
            h = self.inner_norm(h)
        return self.down(h)
