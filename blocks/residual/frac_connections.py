"""Frac-connections: the stream cut into fractions that are connected freely."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from blocks.checks import check_finite
from blocks.norms.statistics import check_groups
from blocks.residual.dynamic_weights import DynamicWeights
from blocks.residual.streams import (
    check_streams,
    look_at,
    mixed,
    refuse_post_norm,
    written,
)
from blocks.site import Site


class FracConnections:
    """new = A^T x + B * F(Y^T x), x: n_streams fractions of the stream of a token.

    Fraction s is the features s * d_model / n_streams to (s + 1) * d_model / n_streams.
    Y^T x put together again is the input of F; its output is cut the same way and
    fraction s of it multiplied by B[s]. The state is no larger than the plain stream.
    A dynamic one adds to the learned numbers what every fraction says:

        Y[s, :] += scale[0] * tanh(norm(x[s]) . weight[:, 0 : n_streams])
        A[s, :] += scale[0] * tanh(norm(x[s]) . weight[:, n_streams : 2 n_streams])
        B[s]    += scale[1] * tanh(norm(x[s]) . weight[:, 2 n_streams])

    Initial values make it the plain residual: B ones, Y = A = I, weight 0.

    Parameters of a joint (float32), role in brackets:
        reading        Y  [n_streams, n_streams]  taken transposed           [mixing]
        mixing         A  [n_streams, n_streams]  taken transposed           [mixing]
        write_weights  B  [n_streams]                                        [mixing]
        dynamic/...       as of `DynamicWeights`, of width d_model / n_streams

    Source: arXiv 2503.14125.
    """

    traced = ("scale_init",)
    takes_post_norm = False  # there is no sum of stream and branch to normalize

    @staticmethod
    def check(
        *,
        n_streams: int = 4,
        is_dynamic: bool = True,
        has_tanh: bool = True,
        scale_init: float = 0.01,
    ) -> None:
        check_streams(n_streams, "copy", "mean")
        check_finite(scale_init=scale_init)

    def __init__(
        self,
        *,
        n_streams: int = 4,
        is_dynamic: bool = True,
        has_tanh: bool = True,
        scale_init: float = 0.01,
        norm: Callable | None = None,
    ):
        """Args:
        n_streams: fractions, 1 to 8; has to divide d_model.
        is_dynamic, has_tanh, scale_init, norm: as of `HyperConnections`.
        """
        self.n_streams = n_streams
        self.make_dynamic = (
            functools.partial(
                DynamicWeights, scale_init=scale_init, has_tanh=has_tanh, norm=norm
            )
            if is_dynamic
            else None
        )

    def init_factor(self, use: str, site: Site) -> float:
        """Initial kernels are as they would be without fractions."""
        del use, site
        return 1.0

    def make_ends(
        self, d_model: int, *, n_layers, norm: Callable, rngs: nnx.Rngs
    ) -> "FracEnds":
        del n_layers, norm, rngs
        check_groups("n_streams", self.n_streams, d_model)
        return FracEnds(self.n_streams)

    def make_joint(
        self,
        d_model: int,
        *,
        site: Site,
        post_norm: Callable | None = None,
        rngs: nnx.Rngs,
    ) -> "FracConnection":
        del site
        check_groups("n_streams", self.n_streams, d_model)
        refuse_post_norm(post_norm, self.n_streams)
        return FracConnection(
            d_model,
            n_streams=self.n_streams,
            make_dynamic=self.make_dynamic,
            rngs=rngs,
        )


class FracEnds(nnx.Module):
    """Cuts the stream of every token into fractions, and joins them."""

    def __init__(self, n_streams: int):
        self.n_streams = n_streams

    def open(self, x: jax.Array) -> jax.Array:
        """[tokens, d_model] -> [n_streams, tokens, d_model / n_streams]."""
        return jnp.stack(jnp.split(x, self.n_streams, axis=-1))

    def close(self, state: jax.Array) -> jax.Array:
        """[n_streams, tokens, d_model / n_streams] -> [tokens, d_model]."""
        return jnp.concatenate(list(state), axis=-1)


class FracConnection(nnx.Module):
    """Reads, mixes and writes the fractions of one sub-layer; see `FracConnections`."""

    def __init__(
        self,
        d_model: int,
        *,
        n_streams: int,
        make_dynamic: Callable | None,
        rngs: nnx.Rngs,
    ):
        eye = jnp.eye(n_streams, dtype=jnp.float32)
        self.reading = nnx.Param(eye, role="mixing")
        self.mixing = nnx.Param(eye, role="mixing")
        self.write_weights = nnx.Param(jnp.ones_like(eye[0]), role="mixing")
        self.dynamic = (
            None
            if make_dynamic is None
            else make_dynamic(d_model // n_streams, 2 * n_streams + 1, rngs=rngs)
        )

    def read(self, state: jax.Array, i: jax.Array):
        """Input of the branch, [tokens, d_model], and the coefficients."""
        del i
        n = len(state)
        reading = self.reading[...][..., None]
        mixing = self.mixing[...][..., None]
        post = self.write_weights[...][:, None]
        if self.dynamic is not None:
            said = self.dynamic(state)
            reading = reading + said[:, :n]
            mixing = mixing + said[:, n:-1]
            post = post + said[:, -1]
        u = jnp.concatenate(mixed(state, jnp.swapaxes(reading, 0, 1)), axis=-1)
        kept = {
            "state": state,
            "pre": jnp.swapaxes(reading, 0, 1),
            "post": post,
            "mixing": jnp.swapaxes(mixing, 0, 1),
        }
        return u.astype(state.dtype), kept

    def write(self, state: jax.Array, branch: jax.Array, kept, i: jax.Array):
        """The fractions after the sub-layer."""
        del i
        parts = jnp.split(branch, len(state), axis=-1)
        return written(state, kept["mixing"], kept["post"], parts)

    def look(self, kept) -> dict[str, jax.Array]:
        """See `blocks.residual.streams.look_at`; mixing is A^T and pre Y^T, [n, n]."""
        return look_at(**kept)
