"""Hyper-connections: several residual streams with free connections between them."""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from blocks.checks import check_finite
from blocks.residual.dynamic_weights import DynamicWeights
from blocks.residual.stream_ends import StreamEnds
from blocks.residual.streams import (
    check_streams,
    look_at,
    refuse_post_norm,
    weighted,
    written,
)
from blocks.site import Site


class HyperConnections:
    """new = A_r^T x + B^T F(A_m^T x), x: the n_streams streams of a token.

    A_m reads, A_r mixes, B writes: learned numbers; a dynamic one adds to them what
    every stream s of the token says:

        A_m[s]    += scale[0] * tanh(norm(x[s]) . weight[:, 0])
        A_r[s, :] += scale[0] * tanh(norm(x[s]) . weight[:, 1 : n_streams + 1])
        B[s]      += scale[1] * tanh(norm(x[s]) . weight[:, n_streams + 1])

    Initial values make it Pre-LN: B ones, A_r = I, A_m one at stream (number of the
    sub-layer mod n_streams) and zero elsewhere, weight 0 (`weight_std`). Coefficients
    and sums over streams are in float32, or the dtype of the streams where that is
    wider; the new streams are rounded once.

    Parameters of a joint (float32), role in brackets:
        read_weights   A_m  [n_streams]                                [mixing]
        mixing         A_r  [n_streams, n_streams]  taken transposed    [mixing]
        write_weights  B    [n_streams]                                [mixing]
        dynamic/...   as of `DynamicWeights`, n_streams + 2 columns, if dynamic

    Source: arXiv 2409.19606; scale_init: lucidrains/hyper-connections (paper: small).
    Departure: streams are averaged at the end (`reduce`), in the paper added up; the
    final norm removes the factor. The paper multiplies the initial std of output
    projections by a power of sqrt(n_streams) without saying which: `output_power`.
    It decays dynamic weights, not the static numbers; the role is mixing for both.
    """

    traced = ("scale_init", "weight_std")
    takes_post_norm = False  # there is no sum of stream and branch to normalize

    @staticmethod
    def check(
        *,
        n_streams: int = 4,
        is_dynamic: bool = True,
        has_tanh: bool = True,
        scale_init: float = 0.01,
        weight_std: float = 0.0,
        output_power: float = 0.0,
        expand: str = "copy",
        reduce: str = "mean",
    ) -> None:
        check_streams(n_streams, expand, reduce)
        if not (math.isfinite(weight_std) and weight_std >= 0):
            raise ValueError(f"weight_std must be finite and >= 0, got {weight_std}")
        check_finite(scale_init=scale_init, output_power=output_power)

    def __init__(
        self,
        *,
        n_streams: int = 4,
        is_dynamic: bool = True,
        has_tanh: bool = True,
        scale_init: float = 0.01,
        weight_std: float = 0.0,
        norm: Callable | None = None,
        output_power: float = 0.0,
        expand: str = "copy",
        reduce: str = "mean",
    ):
        """Args:
        n_streams: residual streams, 1 to 8; the paper's expansion rate.
        is_dynamic: coefficients depend on the token.
        has_tanh: limits what a stream says; about as good without.
        scale_init: how much of what streams say is let through at first.
        weight_std: of the initial dynamic weights; the paper has 0. Above, the untrained
            connections differ from token to token, which shows what they can do.
        norm: norm(d_model, rngs=rngs) of every stream before it speaks; None for
            RMSNorm without a gain.
        output_power: kernels of use "output" start n_streams**output_power as large.
        expand: copy or first; reduce: mean, sum or head (`StreamEnds`).
        """
        self.n_streams = n_streams
        self.output_power = output_power
        self.expand = expand
        self.reduce = reduce
        self.make_dynamic = (
            functools.partial(
                DynamicWeights,
                scale_init=scale_init,
                has_tanh=has_tanh,
                norm=norm,
                weight_std=weight_std,
            )
            if is_dynamic
            else None
        )

    def init_factor(self, use: str, site: Site) -> float:
        """n_streams**output_power for maps that write to the streams."""
        del site
        return float(self.n_streams) ** self.output_power if use == "output" else 1.0

    def make_ends(
        self, d_model: int, *, n_layers, norm: Callable, rngs: nnx.Rngs
    ) -> StreamEnds:
        del n_layers, norm
        return StreamEnds(
            d_model,
            n_streams=self.n_streams,
            expand=self.expand,
            reduce=self.reduce,
            rngs=rngs,
        )

    def make_joint(
        self,
        d_model: int,
        *,
        site: Site,
        post_norm: Callable | None = None,
        rngs: nnx.Rngs,
    ) -> "HyperConnection":
        refuse_post_norm(post_norm, self.n_streams)
        return HyperConnection(
            d_model,
            n_streams=self.n_streams,
            number=site.number,
            make_dynamic=self.make_dynamic,
            rngs=rngs,
        )


class HyperConnection(nnx.Module):
    """Reads, mixes and writes the streams of one sub-layer; see `HyperConnections`."""

    def __init__(
        self,
        d_model: int,
        *,
        n_streams: int,
        number,
        make_dynamic: Callable | None,
        rngs: nnx.Rngs,
    ):
        f32 = jnp.float32
        mine = jnp.arange(n_streams) == number % n_streams
        self.read_weights = nnx.Param(mine.astype(f32), role="mixing")
        self.mixing = nnx.Param(jnp.eye(n_streams, dtype=f32), role="mixing")
        self.write_weights = nnx.Param(jnp.ones((n_streams,), f32), role="mixing")
        self.dynamic = (
            None
            if make_dynamic is None
            else make_dynamic(d_model, n_streams + 2, rngs=rngs)
        )

    def coefficients(self, state: jax.Array):
        """A_m [n, tokens], B [n, tokens], A_r^T [n, n, tokens]; tokens 1 if static."""
        pre = self.read_weights[...][:, None]
        post = self.write_weights[...][:, None]
        mixing = self.mixing[...][..., None]
        if self.dynamic is not None:
            said = self.dynamic(state)
            pre = pre + said[:, 0]
            mixing = mixing + said[:, 1:-1]
            post = post + said[:, -1]
        return pre, post, jnp.swapaxes(mixing, 0, 1)

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
        """See `blocks.residual.streams.look_at`; mixing is A_r^T."""
        return look_at(**kept)
