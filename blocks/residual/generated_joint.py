"""A joint whose coefficients are generated from all streams of a token together."""

import abc
import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from blocks.residual.streams import look_at, projected, weighted, written

STARTS = (
    "uniform",  # pre = 1 / n_streams, post = 1: the streams start as one
    "onehot",  # biases +1 at stream (number of the sub-layer mod n_streams), else -1
)


class GeneratedJoint(nnx.Module):
    """new = mixing x + post^T F(pre x), coefficients from the flattened streams.

        v' = v / sqrt(mean(v^2) + eps)       v: the n_streams streams of a token in a row
        raw = alpha * (v' phi) + bias        alpha: one number for each of pre, post, res
        pre = sigmoid(raw_pre) + e      post = 2 sigmoid(raw_post)
        mixing = what a subclass makes of raw_res

    e is `coefficient_eps`. Coefficients are computed in float32, or in the dtype of the
    streams where that is wider, and so are the sums over streams; the new streams are
    rounded once.

    Parameters (float32), role in brackets; K = 2 n_streams + n_logits, columns pre,
    post, res:
        phi    [n_streams, d_model, K]  init N(0, phi_std^2)                   [mixing]
        bias   [K]  init as `start` says for pre and post, `res_init` for res  [mixing]
        alpha  [3]  init alpha_init; [2] where there is no raw_res             [mixing]

    Subclasses: `n_logits(n_streams)` and `mixing(raw_res)`: [n_logits, tokens] ->
    [n_streams, n_streams, tokens].
    """

    def __init__(
        self,
        d_model: int,
        *,
        n_streams: int,
        start: str,
        number,
        alpha_init,
        phi_std,
        res_init: jax.Array,
        eps: float,
        coefficient_eps: float = 0.0,
        kernel=None,
        rngs: nnx.Rngs,
    ):
        """kernel: has `weighted` and `written` of its own, as those of
        `blocks.kernels.streams`; None for the plain ones.
        """
        n_logits = len(res_init)
        n_coefficients = 2 * n_streams + n_logits
        self.n_streams = n_streams
        self.eps = eps
        self.coefficient_eps = coefficient_eps
        self.kernel = kernel
        f32 = jnp.float32
        if start == "onehot":
            mine = jnp.arange(n_streams) == number % n_streams
            pre = post = jnp.where(mine, 1.0, -1.0).astype(f32)
        else:
            pre = jnp.full((n_streams,), -math.log(n_streams - 1), f32)
            post = jnp.zeros((n_streams,), f32)
        shape = (n_streams, d_model, n_coefficients)
        phi = phi_std * jax.random.normal(rngs.params(), shape, f32)
        bias = jnp.concatenate([pre, post, jnp.asarray(res_init, f32)])
        alpha = jnp.full((3 if n_logits else 2,), alpha_init, f32)
        self.phi = nnx.Param(phi.astype(f32), role="mixing")
        self.bias = nnx.Param(bias, role="mixing")
        self.alpha = nnx.Param(alpha, role="mixing")

    @abc.abstractmethod
    def mixing(self, raw: jax.Array) -> jax.Array:
        """[n_logits, tokens] -> the mixing matrices [n_streams, n_streams, tokens]."""

    def coefficients(self, state: jax.Array):
        """pre [n, tokens], post [n, tokens], mixing [n, n, tokens]."""
        n, bias = self.n_streams, self.bias[...]
        gate = np.minimum(np.arange(len(bias)) // n, 2)  # of pre, of post, of the rest
        alpha = self.alpha[...][gate]
        raw = alpha[:, None] * projected(state, self.phi[...], self.eps)
        raw = raw + bias[:, None]
        pre = jax.nn.sigmoid(raw[:n]) + self.coefficient_eps
        post = 2 * jax.nn.sigmoid(raw[n : 2 * n])
        return pre, post, self.mixing(raw[2 * n :])

    def read(self, state: jax.Array, i: jax.Array):
        """Input of the branch, [tokens, d_model], and the coefficients."""
        del i
        pre, post, mixing = self.coefficients(state)
        kept = {"state": state, "pre": pre, "post": post, "mixing": mixing}
        if self.kernel is not None:
            return self.kernel.weighted(state, pre), kept
        return weighted(state, pre), kept

    def write(self, state: jax.Array, branch: jax.Array, kept, i: jax.Array):
        """The streams after the sub-layer."""
        del i
        mixing, post = kept["mixing"], kept["post"]
        if self.kernel is not None:
            return self.kernel.written(state, mixing, post, branch)
        return written(state, mixing, post, [branch] * len(state))

    def look(self, kept) -> dict[str, jax.Array]:
        """See `blocks.residual.streams.look_at`."""
        return look_at(**kept)
