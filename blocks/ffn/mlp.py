"""Two-matrix feed-forward network."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from blocks.dropout import Dropout
from blocks.ffn.activations import activation_of, check_activation
from blocks.ffn.width import check_width, inner_width
from blocks.linear import Linear
from blocks.norms.at_site import make_norm


class MLP(nnx.Module):
    """y = dropout(down(inner_norm(activation(up(x))))).

    activation is evaluated in float32, or in the dtype of `x` where that is wider,
    and rounded to the dtype of `x` once: the tanh form of gelu cubes its argument,
    which leaves float16 at 40 and makes its gradient NaN there. "gelu" is
    0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), "gelu_erf" is
    x (1 + erf(x / sqrt(2))) / 2. relu2 of a value above 256 is infinite in float16.

    Sub-modules:
        up          Linear [d_model, d_ff]   use "hidden"
        down        Linear [d_ff, d_model]   use "output"
        inner_norm  inner_norm(d_ff), or None (Sub-LN and NormFormer have one here)
        dropout     without parameters, and without state at rate 0

    Source: arXiv 1706.03762 section 3.3; gelu: arXiv 1606.08415; relu2: arXiv
    2109.08668.
    """

    traced = ()

    @staticmethod
    def check(
        *,
        activation: str = "gelu",
        bias: bool = False,
        ratio: float = 4.0,
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
        activation: str = "gelu",
        bias: bool = False,
        ratio: float = 4.0,
        multiple_of: int = 1,
        dropout: float = 0.0,
        inner_norm: Callable | None = None,
        linear: Callable = Linear,
        rngs: nnx.Rngs,
    ):
        """Args:
        d_model: width of the residual stream.
        d_ff: inner width; None for ratio * d_model, rounded up to `multiple_of`.
        activation: one of blocks.ffn.activations.ACTIVATIONS.
        bias: both linear maps learn an offset.
        ratio, multiple_of: give d_ff where it is None.
        dropout: probability that an entry of the output is dropped in training.
        inner_norm: inner_norm(d_ff, rngs=rngs) makes a normalizer.
        linear: linear(d_in, d_out, use=..., bias=..., rngs=...) makes a map.
        rngs: gives the keys.
        """
        self.check(
            activation=activation,
            ratio=ratio,
            multiple_of=multiple_of,
            dropout=dropout,
        )
        d_ff = inner_width(d_model, d_ff, ratio, multiple_of)
        self.d_ff = d_ff
        self.activation = activation
        self.up = linear(d_model, d_ff, use="hidden", bias=bias, rngs=rngs)
        self.inner_norm = (
            None
            if inner_norm is None
            else make_norm(inner_norm, d_ff, "inner", rngs=rngs)
        )
        self.down = linear(d_ff, d_model, use="output", bias=bias, rngs=rngs)
        self.dropout = Dropout(dropout, rngs=rngs)

    def __call__(self, x: jax.Array, shape: tuple[int, int] | None = None) -> jax.Array:
        """Maps [tokens, d_model] to the same shape in the dtype of `x`.

        `shape`, (batch, seq), says how tokens form sequences; tokens do not meet here.
        """
        del shape
        wide = jnp.promote_types(x.dtype, jnp.float32)
        h = activation_of(self.activation)(self.up(x).astype(wide)).astype(x.dtype)
        if self.inner_norm is not None:
            h = self.inner_norm(h)
        return self.dropout(self.down(h))
