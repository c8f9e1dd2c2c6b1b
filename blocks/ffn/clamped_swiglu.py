"""SwiGLU with bounded factors: gpt-oss and DeepSeek-V4."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from blocks.checks import check_finite, check_positive
from blocks.ffn.glu import GLU
from blocks.linear import Linear


class ClampedSwiGLU(GLU):
    """y = dropout(down(inner_norm(h))), with h bounded before the product:

        g = min(gate(x), limit)
        u = min(max(up(x), -limit), limit)
        h = (u + offset) * g * sigmoid(alpha * g)

    The gate has no lower clamp: g * sigmoid(alpha * g) is never below -0.2785 / alpha.
    |h| <= (limit + offset) * limit, so h is finite in float16 whatever gate and up are.
    A value exactly on the limit passes its gradient, as torch.clamp has it (jnp.clip
    would pass half of it); beyond the limit the gradient is zero.

                  limit   alpha   offset   bias
        gpt-oss     7     1.702     1      yes
        DeepSeek-V4 10    1         0      no

    Evaluated in float32 or wider, then rounded to the dtype of `x` once.
    Sub-modules as in `blocks.ffn.glu.GLU`. gpt-oss stores gate and up interleaved:
    `blocks.ffn.packing` takes them apart.

    Source: openai/gpt-oss:gpt_oss/torch/model.py, swiglu; transformers 5.24.0
    GptOssExperts and DeepseekV4MLP.
    """

    traced = ()

    @staticmethod
    def check(
        *,
        limit: float = 7.0,
        alpha: float = 1.702,
        offset: float = 1.0,
        bias: bool = True,
        ratio: float = 8 / 3,
        multiple_of: int = 1,
        dropout: float = 0.0,
    ) -> None:
        """Raises ValueError for numbers that make no such function."""
        check_positive(limit=limit, alpha=alpha)
        check_finite(offset=offset)
        GLU.check(ratio=ratio, multiple_of=multiple_of, dropout=dropout)

    def __init__(
        self,
        d_model: int,
        d_ff: int | None,
        *,
        limit: float = 7.0,
        alpha: float = 1.702,
        offset: float = 1.0,
        bias: bool = True,
        ratio: float = 8 / 3,
        multiple_of: int = 1,
        dropout: float = 0.0,
        inner_norm: Callable | None = None,
        linear: Callable = Linear,
        rngs: nnx.Rngs,
    ):
        """Args:
        limit: bound of gate (above) and up (both sides).
        alpha: slope inside the sigmoid.
        offset: added to up, so that a network whose up is zero still passes its gate.
        The rest as in GLU.
        """
        self.check(limit=limit, alpha=alpha, offset=offset)
        super().__init__(
            d_model,
            d_ff,
            activation="silu",
            bias=bias,
            ratio=ratio,
            multiple_of=multiple_of,
            dropout=dropout,
            inner_norm=inner_norm,
            linear=linear,
            rngs=rngs,
        )
        self.limit = limit
        self.alpha = alpha
        self.offset = offset

    def combine(self, gate: jax.Array, up: jax.Array) -> jax.Array:
        """(u + offset) * g * sigmoid(alpha * g), of float32 or wider."""
        # A strict comparison gives the gradient on the limit to the value.
        g = jnp.where(gate > self.limit, self.limit, gate)
        u = jnp.where(up > self.limit, self.limit, up)
        u = jnp.where(u < -self.limit, -self.limit, u)
        return (u + self.offset) * (g * jax.nn.sigmoid(self.alpha * g))
