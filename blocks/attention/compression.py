"""Several tokens as one entry that later tokens can look at."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from blocks.checks import check_sizes
from blocks.linear import Linear
from blocks.norms.at_site import make_norm


class Compressor(nnx.Module):
    """One entry for every `rate` tokens: their mean, weighted feature by feature.

        entry w = norm(sum over t of softmax_t(gate(x_t) + slots[t - w rate]) * kv(x_t))
                  t = w rate .. w rate + rate - 1

    Tokens behind the last whole window are in no entry. Maps are in the dtype of `x`,
    softmax and sum in float32 or wider, rounded before the norm.

    Parameters (float32), role in brackets:
        slots  [rate, width]  init 0  [position]

    Sub-modules:
        kv    Linear [d_model, width]  use "value"
        gate  Linear [d_model, width]  use "hidden"
        norm  norm(width)

    Source: the heavily compressed attention of DeepSeek-V4 (rate 128); transformers
    5.24.0 modeling_deepseek_v4.py.
    """

    traced = ()
    n_series = 1  # what kv and gate make of a token, in widths of an entry

    @staticmethod
    def check(*, rate: int = 128) -> None:
        """Raises ValueError for windows without tokens."""
        check_sizes(rate=rate)

    def __init__(
        self,
        d_model: int,
        width: int,
        norm: Callable,
        *,
        rate: int = 128,
        linear: Callable = Linear,
        rngs: nnx.Rngs,
    ):
        """Args:
        d_model: width of the tokens.
        width: of an entry.
        norm: norm(width, rngs=rngs) makes a normalizer.
        rate: tokens per window.
        linear: linear(d_in, d_out, use=..., bias=..., rngs=...) makes a map.
        rngs: gives the keys.
        """
        self.check(rate=rate)
        self.rate = rate
        wide = self.n_series * width
        self.kv = linear(d_model, wide, use="value", bias=False, rngs=rngs)
        self.gate = linear(d_model, wide, use="hidden", bias=False, rngs=rngs)
        self.norm = make_norm(norm, width, "qk", rngs=rngs)
        self.slots = nnx.Param(jnp.zeros((rate, wide), jnp.float32), role="position")

    def __call__(self, x: jax.Array, shape: tuple[int, int]) -> jax.Array:
        """[batch * seq, d_model] -> entries [batch, seq // rate, width]."""
        wide = jnp.promote_types(x.dtype, jnp.float32)
        kv, gate = (
            self._windows(project(x), shape).astype(wide)
            for project in (self.kv, self.gate)
        )
        kv, gate = self.met(kv, gate + self.slots[...].astype(wide))
        pooled = jnp.sum(jax.nn.softmax(gate, axis=2) * kv, axis=2)
        return self.norm(pooled.astype(x.dtype))

    def met(self, kv: jax.Array, gate: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Of each window what meets in its entry, [batch, windows, tokens, width]."""
        return kv, gate

    def _windows(self, x: jax.Array, shape: tuple[int, int]) -> jax.Array:
        batch, seq = shape
        n = seq // self.rate
        x = x.reshape(batch, seq, -1)[:, : n * self.rate]
        return x.reshape(batch, n, self.rate, -1)


class OverlappingCompressor(Compressor):
    """Entries over two windows of `rate` tokens, the one before and their own.

        entry w = norm(sum over t of softmax_t(g_t) * v_t)
                  t = (w - 1) rate .. w rate + rate - 1

    kv, gate and slots are two series of `width` features side by side: in the entry of
    the next window a token has the first, in that of its own window the second. The
    softmax is over both windows; in front of the first there is nothing.

    Parameters as of `Compressor`, maps and slots of 2 * width features.

    Source: the compressed sparse attention of DeepSeek-V4 (rate 4).
    """

    n_series = 2

    def met(self, kv: jax.Array, gate: jax.Array) -> tuple[jax.Array, jax.Array]:
        # A weight of exactly zero, without an infinity in a difference.
        nothing = jnp.finfo(gate.dtype).min
        return _overlapped(kv, 0), _overlapped(gate, nothing)


def _overlapped(x: jax.Array, before) -> jax.Array:
    """[batch, n, rate, 2 width] -> [batch, n, 2 rate, width]."""
    first, second = jnp.split(x, 2, axis=-1)
    first = jnp.pad(
        first[:, :-1], [(0, 0), (1, 0), (0, 0), (0, 0)], constant_values=before
    )
    return jnp.concatenate([first, second], axis=2)
