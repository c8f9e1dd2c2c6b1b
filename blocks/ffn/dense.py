"""One linear map and an activation: a layer of a plain deep network."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from blocks.ffn.activations import activation_of, check_activation
from blocks.linear import Linear
from blocks.norms.at_site import make_norm


class Dense(nnx.Module):
    """y = activation(inner_norm(up(x))).

    activation is evaluated in float32, or in the dtype of `x` where that is wider, and
    rounded to the dtype of `x` once.

    Sub-modules:
        up          Linear [d_model, d_model]   use "hidden"
        inner_norm  inner_norm(d_model), or None

    Without a skip (`model.residual.skip=0`) a stack of them is the plain multi-layer
    perceptron on which initial values were first studied; with one, and activation
    "identity", the linear residual chain.

    Source: arXiv 1502.01852 section 2.2 (the layer y = f(W x + b)).
    """

    traced = ()

    @staticmethod
    def check(*, activation: str = "relu", bias: bool = False) -> None:
        """Raises ValueError for an unknown activation."""
        check_activation(activation)

    def __init__(
        self,
        d_model: int,
        d_ff: int | None,
        *,
        activation: str = "relu",
        bias: bool = False,
        inner_norm: Callable | None = None,
        linear: Callable = Linear,
        rngs: nnx.Rngs,
    ):
        """Args:
        d_model: width.
        d_ff: plays no part: there is no inner width.
        activation: one of blocks.ffn.activations.ACTIVATIONS.
        bias: the map learns an offset.
        inner_norm: inner_norm(d_model, rngs=rngs) makes a normalizer.
        linear: linear(d_in, d_out, use=..., bias=..., rngs=...) makes a map.
        rngs: gives the keys.
        """
        del d_ff
        self.check(activation=activation)
        self.activation = activation
        self.up = linear(d_model, d_model, use="hidden", bias=bias, rngs=rngs)
        self.inner_norm = (
            None
            if inner_norm is None
            else make_norm(inner_norm, d_model, "inner", rngs=rngs)
        )

    def __call__(self, x: jax.Array, shape: tuple[int, int] | None = None) -> jax.Array:
        """Maps [tokens, d_model] to the same shape in the dtype of `x`.

        `shape`, (batch, seq), says how tokens form sequences; tokens do not meet here.
        """
        del shape
        wide = jnp.promote_types(x.dtype, jnp.float32)
        h = self.up(x)
        if self.inner_norm is not None:
            h = self.inner_norm(h)
        return activation_of(self.activation)(h.astype(wide)).astype(x.dtype)
