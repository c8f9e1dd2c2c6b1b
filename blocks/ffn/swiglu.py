"""Gated feed-forward network with a SiLU gate."""

from collections.abc import Callable

from flax import nnx

from blocks.ffn.glu import GLU
from blocks.linear import Linear


class SwiGLU(GLU):
    """y = dropout(down(inner_norm(silu(gate(x)) * up(x)))),  silu(z) = z * sigmoid(z).

    `blocks.ffn.glu.GLU` with activation "silu"; sub-modules, dtypes and widths are
    described there.

    Source: arXiv 2002.05202 equation 6; transformers 5.24.0 LlamaMLP.
    """

    @staticmethod
    def check(
        *,
        bias: bool = False,
        ratio: float = 8 / 3,
        multiple_of: int = 1,
        dropout: float = 0.0,
    ) -> None:
        """Raises ValueError for numbers that give no width or no probability."""
        GLU.check(ratio=ratio, multiple_of=multiple_of, dropout=dropout)

    def __init__(
        self,
        d_model: int,
        d_ff: int | None,
        *,
        bias: bool = False,
        ratio: float = 8 / 3,
        multiple_of: int = 1,
        dropout: float = 0.0,
        inner_norm: Callable | None = None,
        linear: Callable = Linear,
        rngs: nnx.Rngs,
    ):
        """Arguments as in GLU."""
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
