"""DenseFormer: the input of every block is a weighted sum of all earlier outputs."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from blocks.checks import check_sizes
from blocks.residual.add import Add, norm_or_none
from blocks.residual.history import HistoryEnds, fixed_depth
from blocks.site import Site


class DenseFormer(Add):
    """After block i (from 0), with X_0 the embedding and X_{i+1} the output of block i:

        x = sum over j <= i + 1 of weights_j X_j

    x is what block i + 1 reads; X_{i+1} is kept. Sources are every `dilation`-th,
    counted back from the newest; only after every `period`-th block x is such a sum,
    and X_{i+1} itself otherwise.

    Parameters (float32), role in brackets:
        weights  [n_layers + 1]  init 1 at i + 1, 0 elsewhere  [mixing]   per block; those
            of sources that block i does not have are not used and get no gradient

    State: x [tokens, d_model], and the sources [n_layers + 1, tokens, d_model]. Since
    the scan keeps the state of every layer for the backward pass, memory grows as
    n_layers^2. The sum is in float32 or wider.

    Source: arXiv 2402.02622 section 3; epfml/DenseFormer.
    """

    traced = ()

    @staticmethod
    def check(*, dilation: int = 1, period: int = 1) -> None:
        check_sizes(dilation=dilation, period=period)

    def __init__(self, *, dilation: int = 1, period: int = 1):
        self.check(dilation=dilation, period=period)
        super().__init__()
        self.dilation = dilation
        self.period = period

    def make_ends(
        self, d_model: int, *, n_layers, norm: Callable, rngs: nnx.Rngs
    ) -> HistoryEnds:
        del d_model, norm, rngs
        return HistoryEnds(1 + fixed_depth(n_layers, "DenseFormer"))

    def make_joint(
        self,
        d_model: int,
        *,
        site: Site,
        post_norm: Callable | None = None,
        rngs: nnx.Rngs,
    ) -> "DenseFormerJoint":
        n_layers = fixed_depth(site.n_layers, "DenseFormer")
        is_last = site.index == site.per_block - 1
        newest = jnp.arange(n_layers + 1) == site.layer + 1
        return DenseFormerJoint(
            norm_or_none(post_norm, d_model, site, rngs),
            nnx.Param(newest.astype(jnp.float32), role="mixing") if is_last else None,
            dilation=self.dilation,
            period=self.period,
            per_block=site.per_block,
        )


class DenseFormerJoint(nnx.Module):
    """Only the last sub-layer of a block has weights."""

    def __init__(
        self,
        post_norm: nnx.Module | None,
        weights: nnx.Param | None,
        *,
        dilation: int,
        period: int,
        per_block: int,
    ):
        self.post_norm = post_norm
        self.weights = weights
        self.dilation = dilation
        self.period = period
        self.per_block = per_block

    def map_stream(self, f, state):
        """Measured is what the next sub-layer reads; the sources are memory."""
        return f(state[0]), state[1]

    def read(self, state: tuple[jax.Array, jax.Array], i: jax.Array):
        del i
        return state[0], None

    def write(self, state, branch: jax.Array, kept, i: jax.Array):
        del kept
        x, sources = state
        x = x + branch
        if self.post_norm is not None:
            x = self.post_norm(x)
        if self.weights is None:
            return x, sources
        newest = i // self.per_block + 1
        sources = sources.at[newest].set(x)
        age = newest - jnp.arange(len(sources))
        is_used = age % self.dilation == 0  # those still to come are zero
        wide = jnp.promote_types(x.dtype, jnp.float32)
        weights = jnp.where(is_used, self.weights[...], 0).astype(wide)
        mean = jnp.tensordot(weights, sources.astype(wide), axes=1).astype(x.dtype)
        return jnp.where(newest % self.period == 0, mean, x), sources
