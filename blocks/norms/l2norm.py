"""Division by the Euclidean length."""

import jax
import jax.numpy as jnp
from flax import nnx

from blocks.norms.statistics import check_eps, reciprocal_root, widened


class L2Norm(nnx.Module):
    """Divides every token by its Euclidean length; nothing is learned.

        y = x / sqrt(sum(x^2) + eps)

    Entries are about 1 / sqrt(d_model), not about 1. eps_mode=clamp is
    x / max(|x|, eps) as in torch.nn.functional.normalize, and as QKNorm does to
    queries and keys; with it tokens that are merely small do not shrink.

    Arithmetic in float32, or in the dtype of `x` where that is wider; the result is
    rounded to the dtype of `x` once.

    Parameters: none.

    Source: inside the root with 1e-12, flax.nnx (flax/nnx/nn/normalization.py);
    for queries and keys arXiv 2010.04245, CyndxAI/QKNorm QKNorm/layers.py.
    """

    traced = ()

    @staticmethod
    def check(*, eps: float = 1e-12, eps_mode: str = "inside") -> None:
        """Raises ValueError for no such mode, or an eps that cannot protect the root."""
        check_eps(eps, eps_mode)

    def __init__(
        self,
        d_model: int,
        *,
        eps: float = 1e-12,
        eps_mode: str = "inside",
        rngs: nnx.Rngs,
    ):
        """Args:
        d_model: size of the last axis of the input.
        eps: added to the sum of squares, or as `eps_mode` says.
        eps_mode: inside, outside or clamp.
        rngs: unused; every normalizer takes it.
        """
        del rngs
        self.check(eps=eps, eps_mode=eps_mode)
        self.d_model = d_model
        self.eps = eps
        self.eps_mode = eps_mode

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps [..., d_model] to [..., d_model] in the dtype of `x`."""
        wide = widened(x, self.d_model)
        square = jnp.sum(jnp.square(wide), axis=-1, keepdims=True)
        y = wide * reciprocal_root(square, self.eps, self.eps_mode)
        return y.astype(x.dtype)
