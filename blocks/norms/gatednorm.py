"""GatedNorm: RMSNorm and a gate of low rank that looks at its output."""

import math

import jax
import jax.numpy as jnp
from flax import nnx

from blocks.checks import check_sizes
from blocks.norms.statistics import check_eps, scaled, widened


class GatedNorm(nnx.Module):
    """Scales every feature of a normalized token by a gate between 0 and 2.

        n = (1 + gain) * x / sqrt(mean(x^2) + eps)
        y = 2 * n * sigmoid(silu(n @ down) @ up)

    mean over the last axis. `up` starts at zero: the gate is then 1 and y = n, so it
    starts as RMSNorm; in the first step only `up` has a gradient, of the two.
    The gate lets the model shrink a token without a huge feature that inflates its
    root mean square.

    Arithmetic in float32, or in the dtype of `x` where that is wider, products with
    `down` and `up` included (as accelerators multiply float32 by default); the result
    is rounded to the dtype of `x` once. |x| must stay below about 1e19, where squares
    leave float32.

    Parameters (float32, whatever the activation dtype), role in brackets:
        gain  [d_model]        init 0                       [gain]  decay pulls it to 1
        down  [d_model, rank]  init N(0, 1) / sqrt(d_model)  [gain]
        up    [rank, d_model]  init 0                       [gain]

    The matrices have the role of a gain: as "matrix" they would be orthogonalised by
    Muon, whose step moves all their singular values by the same amount.

    Source: arXiv 2601.22966; formula and rank 16 of a public torch implementation
    (class ZeroCenteredGatedNorm, after mosaicml/llm-foundry). Its linear maps have
    torch's default initial values, so its gate starts near 1 and not at it. What the
    paper's own code starts with is not known here.
    """

    traced = ()

    @staticmethod
    def check(*, rank: int = 16, eps: float = 1e-6) -> None:
        """Raises ValueError for a rank below 1, or an eps too small."""
        check_sizes(rank=rank)
        check_eps(eps)

    def __init__(
        self, d_model: int, *, rank: int = 16, eps: float = 1e-6, rngs: nnx.Rngs
    ):
        """Args:
        d_model: size of the last axis of the input.
        rank: width between the two matrices of the gate.
        eps: added to the mean square.
        rngs: draws `down`.
        """
        self.check(rank=rank, eps=eps)
        f32 = jnp.float32
        self.d_model = d_model
        self.eps = eps
        normal = jax.random.normal(rngs.params(), (d_model, rank), f32)
        self.gain = nnx.Param(jnp.zeros((d_model,), f32), role="gain")
        self.down = nnx.Param(normal / math.sqrt(d_model), role="gain")
        self.up = nnx.Param(jnp.zeros((rank, d_model), f32), role="gain")

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps [..., d_model] to [..., d_model] in the dtype of `x`."""
        wide = widened(x, self.d_model)
        n = (1 + self.gain[...].astype(wide.dtype)) * scaled(wide, self.eps)
        gate = jax.nn.sigmoid(jax.nn.silu(n @ self.down[...]) @ self.up[...])
        return (2 * n * gate).astype(x.dtype)
