"""Joints whose coefficients are generated from all streams of a token together."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from blocks.norms.statistics import check_eps
from blocks.residual.add import AddEnds, AddJoint
from blocks.residual.streams import (
    StreamEnds,
    check_streams,
    look_at,
    projected,
    refuse_post_norm,
    weighted,
    written,
)
from blocks.site import Site

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
        rngs: nnx.Rngs,
    ):
        n_logits = len(res_init)
        n_coefficients = 2 * n_streams + n_logits
        self.n_streams = n_streams
        self.eps = eps
        self.coefficient_eps = coefficient_eps
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

    def mixing(self, raw: jax.Array) -> jax.Array:
        raise NotImplementedError

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
        return weighted(state, pre), kept

    def write(self, state: jax.Array, branch: jax.Array, kept, i: jax.Array):
        """The streams after the sub-layer."""
        del i
        branches = [branch] * len(state)
        return written(state, kept["mixing"], kept["post"], branches)

    def look(self, kept) -> dict[str, jax.Array]:
        """See `blocks.residual.streams.look_at`."""
        return look_at(**kept)


class GeneratedStreams:
    """What the schemes have in common whose joints are `GeneratedJoint`s.

    A subclass has `joint` (the class of its joints), `res_init()` (initial biases of
    raw_res) and may have `joint_keywords`. With n_streams = 1 there is nothing to mix
    and nothing to weigh: the scheme is then the plain residual, without parameters.
    """

    joint: type[GeneratedJoint]

    def __init__(
        self,
        *,
        n_streams,
        start,
        alpha_init,
        phi_std,
        eps,
        expand,
        reduce,
        coefficient_eps=0.0,
    ):
        self.n_streams = n_streams
        self.start = start
        self.alpha_init = alpha_init
        self.phi_std = phi_std
        self.eps = eps
        self.expand = expand
        self.reduce = reduce
        self.coefficient_eps = coefficient_eps
        self.joint_keywords = {}

    def res_init(self) -> jax.Array:
        raise NotImplementedError

    def init_factor(self, use: str, site: Site) -> float:
        """Initial kernels are as they would be without streams."""
        del use, site
        return 1.0

    def make_ends(
        self, d_model: int, *, n_layers, norm: Callable, rngs: nnx.Rngs
    ) -> nnx.Module:
        del n_layers, norm
        if self.n_streams == 1:
            return AddEnds()
        return StreamEnds(
            d_model,
            n_streams=self.n_streams,
            expand=self.expand,
            reduce=self.reduce,
            eps=self.eps,
            coefficient_eps=self.coefficient_eps,
            rngs=rngs,
        )

    def make_joint(
        self,
        d_model: int,
        *,
        site: Site,
        post_norm: Callable | None = None,
        rngs: nnx.Rngs,
    ) -> nnx.Module:
        refuse_post_norm(post_norm, self.n_streams)
        if self.n_streams == 1:
            return AddJoint(None, skip=1.0, branch_scale=1.0)
        return self.joint(
            d_model,
            n_streams=self.n_streams,
            start=self.start,
            number=site.number,
            alpha_init=self.alpha_init,
            phi_std=self.phi_std,
            res_init=self.res_init(),
            eps=self.eps,
            coefficient_eps=self.coefficient_eps,
            rngs=rngs,
            **self.joint_keywords,
        )


def check_generated(
    *,
    n_streams: int,
    start: str,
    alpha_init: float,
    phi_std: float,
    eps: float,
    expand: str,
    reduce: str,
    coefficient_eps: float = 0.0,
) -> None:
    """Raises ValueError for values that no generated scheme can have."""
    check_streams(n_streams, expand, reduce)
    check_eps(eps)
    if start not in STARTS:
        raise ValueError(f"start must be one of {', '.join(STARTS)}, got {start!r}")
    if not math.isfinite(alpha_init):
        raise ValueError(f"alpha_init must be finite, got {alpha_init}")
    if not (math.isfinite(phi_std) and phi_std >= 0):
        raise ValueError(f"phi_std must be finite and >= 0, got {phi_std}")
    if not (math.isfinite(coefficient_eps) and coefficient_eps >= 0):
        raise ValueError(
            f"coefficient_eps must be finite and >= 0, got {coefficient_eps}"
        )
    # Streams that start alike and are treated alike get the same gradients for ever.
    if start == "uniform" and expand == "copy" and phi_std == 0 and n_streams > 1:
        raise ValueError(
            f"phi_std must be above 0 with start='uniform' and n_streams={n_streams}, "
            f"got {phi_std}: nothing would ever make the streams differ "
            "(or take start='onehot')"
        )
