"""A linear map that knows what it is for."""

import jax
from flax import nnx

from blocks.checks import check_choice
from blocks.inits.normal import Normal
from blocks.wide_gradient import wide_gradient

USES = (
    "hidden",  # feeds a nonlinearity: up and gate of a feed-forward
    "query",
    "key",
    "value",
    "output",  # writes to the residual stream: attention o, feed-forward down
    "head",  # unembedding
)

_NORMAL = Normal()


class Linear(nnx.Module):
    """y = x @ kernel + bias, over flat tokens.

    Computed in the dtype of `x`: the float32 parameters are cast to it, and what
    matrix products accumulate in is the backend's choice (float32 for bfloat16 and
    float16 on CPU and GPU).

    Parameters (float32), role in brackets:
        kernel  [d_in, d_out]  init.kernel   [matrix; head when use is "head"]
        bias    [d_out]        init.bias     [bias]   only if asked for

    Tokens are one axis: [tokens, d_in]. On CPU a 3-D activation turns the weight
    gradient into a slower product.
    """

    traced = ()

    @staticmethod
    def check(*, bias: bool = False) -> None:
        """Every value of `bias` is valid."""

    def __init__(
        self,
        d_in: int,
        d_out: int,
        *,
        use: str,
        init=_NORMAL,
        layer: int = 0,
        n_sublayers: int = 1,
        bias: bool = False,
        rngs: nnx.Rngs,
    ):
        """Args:
            d_in, d_out: widths.
            use: what the map is for, one of `USES`; chooses the role of the kernel
                and is passed to `init`.
            init: has kernel(key, shape, use, *, layer, n_sublayers) and
                bias(key, shape, fan_in), both giving float32.
            layer: index of the block from 0; may be traced. Only for `init`.
            n_sublayers: sub-layers of the whole model. Only for `init`.
            bias: adds a learned offset.
            rngs: one key is taken from `params`, with or without a bias, so that a
                bias changes no kernel of the model.

        Raises:
            ValueError: `use` is unknown.
        """
        check_choice("use", use, USES)
        key = rngs.params()
        kernel = init.kernel(
            key, (d_in, d_out), use, layer=layer, n_sublayers=n_sublayers
        )
        self.d_in = d_in
        self.kernel = nnx.Param(kernel, role="head" if use == "head" else "matrix")
        offset = init.bias(jax.random.fold_in(key, 1), (d_out,), d_in) if bias else None
        self.bias = nnx.Param(offset, role="bias") if bias else None

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps [tokens, d_in] to [tokens, d_out] in the dtype of `x`.

        Raises:
            ValueError: `x` is not [tokens, d_in].
        """
        if x.ndim != 2 or x.shape[-1] != self.d_in:
            raise ValueError(f"expected [tokens, {self.d_in}], got shape {x.shape}")
        y = x @ wide_gradient(self.kernel[...].astype(x.dtype))
        if self.bias is not None:
            y += self.bias[...].astype(x.dtype)
        return y
