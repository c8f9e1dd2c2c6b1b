"""A convolution over the last few tokens, feature by feature."""

import jax
import jax.numpy as jnp
from flax import nnx

from blocks.cache import Cache
from blocks.checks import check_sizes


class ShortConvolution(nnx.Module):
    """Every feature sees its own last few values.

        y[t] = sum over j of taps[j] * x[t - kernel_size + 1 + j],   x[t < 0] = 0

    In the dtype of `x`.

    Parameters (float32), role in brackets:
        taps  [kernel_size, d_model]  init N(0, 0.02^2)  [mixing]

    Source: arXiv 2412.06464 section 3.4; transformers 5.24.0 modeling_qwen3_next.py,
    where it is a depthwise Conv1d without bias, weight [d_model, 1, kernel_size].
    """

    traced = ()

    @staticmethod
    def check(*, kernel_size: int = 4) -> None:
        """Raises ValueError for no tokens to see."""
        check_sizes(kernel_size=kernel_size)

    def __init__(self, d_model: int, *, kernel_size: int = 4, rngs: nnx.Rngs):
        """Args:
        d_model: features.
        kernel_size: tokens that a token sees, itself the last of them.
        rngs: gives the key.
        """
        self.check(kernel_size=kernel_size)
        shape = (kernel_size, d_model)
        taps = 0.02 * jax.random.normal(rngs.params(), shape, jnp.float32)
        self.taps = nnx.Param(taps, role="mixing")

    def __call__(
        self, x: jax.Array, shape: tuple[int, int], cache: Cache | None = None
    ) -> jax.Array:
        """Maps [batch * seq, d_model] to the same shape; `shape` is (batch, seq).

        cache: the last values of the tokens before, where there are some.

        Raises:
            ValueError: `shape` does not account for the tokens of `x`.
        """
        batch, seq = shape
        if len(x) != batch * seq:
            raise ValueError(
                f"expected batch * seq = {batch} * {seq} tokens, got shape {x.shape}"
            )
        taps = self.taps[...].astype(x.dtype)
        x = x.reshape(batch, seq, -1)
        if cache is None:
            before = jnp.pad(x, [(0, 0), (len(taps) - 1, 0), (0, 0)])
        else:
            none = jnp.zeros((batch, len(taps) - 1, x.shape[-1]), x.dtype)
            before = jnp.concatenate([cache.get("last", none), x], axis=1)
            cache.put("last", before[:, seq:])
        y = sum(tap * before[:, j : j + seq] for j, tap in enumerate(taps))
        return y.reshape(batch * seq, -1)
