"""Where several residual streams begin and end."""

import jax
import jax.numpy as jnp
from flax import nnx

from blocks.norms.statistics import check_eps
from blocks.residual.streams import check_streams, projected, weighted, wide


class StreamEnds(nnx.Module):
    """Embedding -> streams, streams -> what the final norm is given.

    Parameters of the reduction "head" (float32), role in brackets; none otherwise:
        phi    [n_streams, d_model, n_streams]  init N(0, 0.02^2)     [mixing]
        bias   [n_streams]  init -ln(n_streams - 1), so each 1 / n    [mixing]
        alpha  [1]          init 0.01                                 [mixing]

    Source: copy and sum: arXiv 2409.19606; mean: GLM-5.3 of huggingface/transformers
    (models/glm5_next); head: models/deepseek_v4, with `coefficient_eps` added to the
    weights, and initial values of models/hy_v4. Sum, mean and an untrained head differ
    by a factor only, which the final norm takes away again (up to its eps).
    """

    def __init__(
        self,
        d_model: int,
        *,
        n_streams: int,
        expand: str = "copy",
        reduce: str = "mean",
        eps: float = 1e-6,
        coefficient_eps: float = 0.0,
        rngs: nnx.Rngs,
    ):
        check_streams(n_streams, expand, reduce)
        check_eps(eps)
        self.n_streams = n_streams
        self.expand = expand
        self.reduce = reduce
        self.eps = eps
        self.coefficient_eps = coefficient_eps
        if reduce != "head":
            return
        shape = (n_streams, d_model, n_streams)
        start = jnp.full((n_streams,), -jnp.log(max(n_streams - 1, 1)), jnp.float32)
        phi = 0.02 * jax.random.normal(rngs.params(), shape, jnp.float32)
        self.phi = nnx.Param(phi, role="mixing")
        self.bias = nnx.Param(start, role="mixing")
        self.alpha = nnx.Param(jnp.full((1,), 0.01, jnp.float32), role="mixing")

    def open(self, x: jax.Array) -> jax.Array:
        """[tokens, d_model] -> [n_streams, tokens, d_model]."""
        if self.expand == "copy":
            return jnp.broadcast_to(x, (self.n_streams, *x.shape))
        return jnp.zeros((self.n_streams, *x.shape), x.dtype).at[0].set(x)

    def close(self, state: jax.Array) -> jax.Array:
        """[n_streams, tokens, d_model] -> [tokens, d_model]."""
        if self.reduce == "head":
            logits = self.alpha[...] * projected(state, self.phi[...], self.eps)
            weights = jax.nn.sigmoid(logits + self.bias[...][:, None])
            return weighted(state, weights + self.coefficient_eps)
        total = sum(wide(state))
        if self.reduce == "mean":
            total = total / self.n_streams
        return total.astype(state.dtype)
