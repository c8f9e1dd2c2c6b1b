"""A gate on the output of attention."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from blocks.checks import check_choice
from blocks.linear import Linear

PER = ("feature", "head")


class SigmoidGate(nnx.Module):
    """Multiplies what the heads found by a gate that the token itself decides.

        y = sigmoid(proj(x)) * heads

    per = "feature": one gate for every feature of every head; "head": one per head.
    The gate sits between the product with v and the output projection.

    The sigmoid and the product are in float32 or wider, the result in the dtype of
    `heads`.

    Sub-modules:
        proj  Linear [d_model, n_heads * d_head or n_heads]  use "hidden", no bias

    Source: arXiv 2505.06708 section 2 (position G1); transformers 5.24.0
    modeling_qwen3_next.py, whose q_proj holds query and gate of every head.
    """

    traced = ()

    @staticmethod
    def check(*, per: str = "feature") -> None:
        """Raises ValueError for an unknown `per`."""
        check_choice("per", per, PER)

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        d_head: int,
        *,
        per: str = "feature",
        linear: Callable = Linear,
        rngs: nnx.Rngs,
    ):
        """Args:
        d_model: width of the tokens that decide.
        n_heads, d_head: of the attention.
        per: what one gate stands for, one of `PER`.
        linear: linear(d_in, d_out, use=..., bias=..., rngs=...) makes a map.
        rngs: gives the key.
        """
        self.check(per=per)
        self.n_heads = n_heads
        d_gate = n_heads * d_head if per == "feature" else n_heads
        self.proj = linear(d_model, d_gate, use="hidden", bias=False, rngs=rngs)

    def __call__(self, x: jax.Array, heads: jax.Array) -> jax.Array:
        """x [tokens, d_model], heads [tokens, n_heads * d_head] -> like heads."""
        wide = jnp.promote_types(x.dtype, jnp.float32)
        gate = jax.nn.sigmoid(self.proj(x).astype(wide))
        gate = gate.reshape(len(x), self.n_heads, -1)
        y = gate * heads.reshape(len(x), self.n_heads, -1).astype(wide)
        return y.reshape(heads.shape).astype(heads.dtype)
