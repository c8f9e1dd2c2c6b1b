"""Two-matrix feed-forward network."""

import difflib
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from blocks.linear import Linear

# The elementwise functions of jax.nn; gelu is its tanh form, as in GPT-2.
ACTIVATIONS = (
    "celu",
    "elu",
    "gelu",
    "hard_sigmoid",
    "hard_silu",
    "hard_swish",
    "hard_tanh",
    "identity",
    "leaky_relu",
    "log_sigmoid",
    "mish",
    "relu",
    "relu6",
    "selu",
    "sigmoid",
    "silu",
    "soft_sign",
    "softplus",
    "sparse_plus",
    "sparse_sigmoid",
    "squareplus",
    "swish",
    "tanh",
)


class MLP(nnx.Module):
    """y = down(inner_norm(activation(up(x)))).

    activation is evaluated in float32, or in the dtype of `x` where that is wider,
    and rounded to the dtype of `x` once: the tanh form of gelu cubes its argument,
    which leaves float16 at 40 and makes its gradient NaN there. "gelu" is
    0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))).

    Sub-modules:
        up          Linear [d_model, d_ff]   use "hidden"
        down        Linear [d_ff, d_model]   use "output"
        inner_norm  inner_norm(d_ff), or None (Sub-LN and NormFormer have one here)

    Source: arXiv 1706.03762 section 3.3; gelu: arXiv 1606.08415.
    """

    traced = ()

    @staticmethod
    def check(*, activation: str = "gelu", bias: bool = False) -> None:
        """Raises ValueError for a name that is no elementwise function of jax.nn."""
        if activation not in ACTIVATIONS:
            near = difflib.get_close_matches(activation, ACTIVATIONS, n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            raise ValueError(
                f"activation must be one of {', '.join(ACTIVATIONS)}, "
                f"got {activation!r}{hint}"
            )

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        *,
        activation: str = "gelu",
        bias: bool = False,
        inner_norm: Callable | None = None,
        linear: Callable = Linear,
        rngs: nnx.Rngs,
    ):
        """Args:
        d_model: width of the residual stream.
        d_ff: inner width.
        activation: name of an elementwise function of jax.nn.
        bias: both linear maps learn an offset.
        inner_norm: inner_norm(d_ff, rngs=rngs) makes a normalizer.
        linear: linear(d_in, d_out, use=..., bias=..., rngs=...) makes a map.
        rngs: gives the keys.
        """
        self.check(activation=activation)
        self.activation = activation
        self.up = linear(d_model, d_ff, use="hidden", bias=bias, rngs=rngs)
        self.inner_norm = None if inner_norm is None else inner_norm(d_ff, rngs=rngs)
        self.down = linear(d_ff, d_model, use="output", bias=bias, rngs=rngs)

    def __call__(self, x: jax.Array, shape: tuple[int, int] | None = None) -> jax.Array:
        """Maps [tokens, d_model] to the same shape in the dtype of `x`.

        `shape`, (batch, seq), says how tokens form sequences; tokens do not meet here.
        """
        del shape
        wide = jnp.promote_types(x.dtype, jnp.float32)
        h = getattr(jax.nn, self.activation)(self.up(x).astype(wide)).astype(x.dtype)
        if self.inner_norm is not None:
            h = self.inner_norm(h)
        return self.down(h)
