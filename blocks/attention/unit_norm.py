"""L2 normalization of queries and keys."""

import math

import jax
import jax.numpy as jnp
from flax import nnx

SMALLEST_EPS = 1e-18  # its square, under the root, must stay a float32


class UnitNorm(nnx.Module):
    """y = x / max(|x|, eps): every vector gets length 1.

    |x| over the last axis. The product of two such vectors is a cosine, which needs a
    temperature: `tau_init` of the attention, instead of 1 / sqrt(d_head). Below eps
    the map is linear, x / eps, so that zero has a gradient.

    Arithmetic in float32 or wider, the result in the dtype of `x`. No parameters.

    Source: arXiv 2010.04245 section 3; torch.nn.functional.normalize.
    """

    traced = ()

    @staticmethod
    def check(*, eps: float = 1e-12) -> None:
        """Raises ValueError for an eps that cannot protect the quotient."""
        if not (math.isfinite(eps) and eps >= SMALLEST_EPS):
            raise ValueError(f"eps must be finite and >= {SMALLEST_EPS}, got {eps}")

    def __init__(self, d_head: int, *, eps: float = 1e-12, rngs: nnx.Rngs):
        """Args:
        d_head: size of the last axis of the input.
        eps: smallest length that is divided by.
        rngs: unused (no parameters); every normalizer takes it.
        """
        del rngs
        self.check(eps=eps)
        self.d_head = d_head
        self.eps = eps

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps [..., d_head] to [..., d_head] in the dtype of `x`."""
        if x.shape[-1] != self.d_head:
            raise ValueError(f"expected last axis {self.d_head}, got shape {x.shape}")
        wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
        square = jnp.sum(jnp.square(wide), axis=-1, keepdims=True)
        # Under the root: the gradient of a root at zero is infinite.
        return (wide * jax.lax.rsqrt(jnp.maximum(square, self.eps**2))).astype(x.dtype)
