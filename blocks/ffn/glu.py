"""Gated feed-forward networks: one class, the gate's function a keyword."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from blocks.dropout import Dropout
from blocks.ffn.activations import activation_of, check_activation
from blocks.ffn.width import check_width, inner_width
from blocks.linear import Linear
from blocks.norms.at_site import make_norm


class GLU(nnx.Module):
    """y = dropout(down(inner_norm(activation(gate(x)) * up(x)))).

    activation: sigmoid (GLU), relu (ReGLU), gelu or gelu_erf (GEGLU), silu (SwiGLU),
    identity (bilinear). It and the product are evaluated in float32, or in the dtype
    of `x` where that is wider, and rounded to the dtype of `x` once (Llama rounds
    after silu too, which differs in half precision only). A product above 65504 is
    infinite in float16.

    Three matrices: at equal parameters d_ff is 2/3 of that of a two-matrix network,
    8/3 d_model where that has 4 d_model.

    Sub-modules:
        gate        Linear [d_model, d_ff]   use "hidden"
        up          Linear [d_model, d_ff]   use "hidden"
        down        Linear [d_ff, d_model]   use "output"
        inner_norm  inner_norm(d_ff), or None
        dropout     without parameters, and without state at rate 0

    Source: arXiv 2002.05202 equations 4 to 6; transformers 5.24.0 GemmaMLP.
    """

    traced = ()

    @staticmethod
    def check(
        *,
        activation: str = "sigmoid",
        bias: bool = False,
        ratio: float = 8 / 3,
        multiple_of: int = 1,
        dropout: float = 0.0,
    ) -> None:
        """Raises ValueError for an unknown activation, no width or no probability."""
        check_activation(activation)
        check_width(ratio, multiple_of)
        Dropout.check(rate=dropout)

    def __init__(
        self,
        d_model: int,
        d_ff: int | None,
        *,
        activation: str = "sigmoid",
        bias: bool = False,
        ratio: float = 8 / 3,
        multiple_of: int = 1,
        dropout: float = 0.0,
        inner_norm: Callable | None = None,
        linear: Callable = Linear,
        rngs: nnx.Rngs,
    ):
        """Args:
        d_model: width of the residual stream.
        d_ff: inner width; None for ratio * d_model, rounded up to `multiple_of`.
        activation: of the gate, one of blocks.ffn.activations.ACTIVATIONS.
        bias: all three linear maps learn an offset.
        ratio, multiple_of: give d_ff where it is None.
        dropout: probability that an entry of the output is dropped in training.
        inner_norm: inner_norm(d_ff, rngs=rngs) makes a normalizer.
        linear: linear(d_in, d_out, use=..., bias=..., rngs=...) makes a map.
        rngs: gives the keys.
        """
        GLU.check(
            activation=activation,
            ratio=ratio,
            multiple_of=multiple_of,
            dropout=dropout,
        )
        d_ff = inner_width(d_model, d_ff, ratio, multiple_of)
        self.d_ff = d_ff
        self.activation = activation
        self.gate = linear(d_model, d_ff, use="hidden", bias=bias, rngs=rngs)
        self.up = linear(d_model, d_ff, use="hidden", bias=bias, rngs=rngs)
        self.inner_norm = (
            None
            if inner_norm is None
            else make_norm(inner_norm, d_ff, "inner", rngs=rngs)
        )
        self.down = linear(d_ff, d_model, use="output", bias=bias, rngs=rngs)
        self.dropout = Dropout(dropout, rngs=rngs)

    def combine(self, gate: jax.Array, up: jax.Array) -> jax.Array:
        """activation(gate) * up, of float32 or wider."""
        return activation_of(self.activation)(gate) * up

    def __call__(self, x: jax.Array, shape: tuple[int, int] | None = None) -> jax.Array:
        """Maps [tokens, d_model] to the same shape in the dtype of `x`.

        `shape`, (batch, seq), says how tokens form sequences; tokens do not meet here.
        """
        del shape
        wide = jnp.promote_types(x.dtype, jnp.float32)
        gate, up = self.gate(x).astype(wide), self.up(x).astype(wide)
        h = self.combine(gate, up).astype(x.dtype)
        if self.inner_norm is not None:
            h = self.inner_norm(h)
        return self.dropout(self.down(h))
