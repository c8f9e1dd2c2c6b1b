"""Rotary position embedding."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from blocks.checks import check_choice
from blocks.positions.place import Place, rows
from blocks.positions.scaling import Interpolation, Llama3, Yarn

LAYOUTS = ("half", "interleaved")


class Rope(nnx.Module):
    """Rotates pairs of features by an angle proportional to the position.

        angle[p, i] = p * scaling(base**(-2 i / d_rotary))    i = 0 .. d_rotary / 2 - 1
        y[a] = x[a] cos - x[b] sin
        y[b] = x[b] cos + x[a] sin

    Positions p are 0 .. seq - 1, angles in radians. The pair (a, b) of angle i is
    (i, i + d_rotary / 2) in the layout "half" (Llama, GPT-NeoX: "rotate half") and
    (2 i, 2 i + 1) in "interleaved" (the paper; Llama 4, DeepSeek): weights of one
    need their features permuted for the other. Only the first d_rotary = fraction *
    d_head features turn. The product of a rotated query and a rotated key depends on
    the difference of positions only.

    Angles, cosines and sines are taken in float64 on the host; they and the rotation
    are float32, or the dtype of the input where that is wider, and the result is
    rounded to the dtype of the input once. No parameters.

    Source: arXiv 2104.09864 section 3.4.2; transformers 5.24.0 modeling_llama.py,
    modeling_llama4.py, modeling_qwen3_next.py (a fraction of 0.25).
    """

    traced = ()

    @staticmethod
    def check(
        *, base: float = 10000.0, layout: str = "half", fraction: float = 1.0
    ) -> None:
        """Raises ValueError for a base that gives no decreasing frequencies."""
        if not (math.isfinite(base) and base > 1):
            raise ValueError(f"base must be finite and above 1, got {base}")
        check_choice("layout", layout, LAYOUTS)
        if not 0 < fraction <= 1:
            raise ValueError(f"fraction must be above 0 and at most 1, got {fraction}")

    def __init__(
        self,
        d_head: int,
        *,
        base: float = 10000.0,
        layout: str = "half",
        fraction: float = 1.0,
        scaling: Interpolation | Llama3 | Yarn | None = None,
    ):
        """Args:
            d_head: width of a head, even.
            base: 2 pi * base bounds the longest period, in tokens.
            layout: which features are a pair, one of `LAYOUTS`.
            fraction: the part of a head that turns.
            scaling: slower frequencies, one of `blocks.positions.scaling`.

        Raises:
            ValueError: an odd number of features would turn, or `base` is not above 1.
        """
        self.check(base=base, layout=layout, fraction=fraction)
        if d_head < 2 or d_head % 2:
            raise ValueError(f"d_head must be even and positive, got {d_head}")
        self.d_head = d_head
        self.d_rotary = int(d_head * fraction)
        if self.d_rotary < 2 or self.d_rotary % 2:
            raise ValueError(
                "fraction of d_head must be an even number of features, got "
                f"{fraction} of {d_head}"
            )
        self.base = base
        self.layout = layout
        self.scaling = scaling

    def frequencies(self) -> np.ndarray:
        """Radians per token of each pair [d_rotary / 2], float64."""
        half = self.d_rotary // 2
        frequency = float(self.base) ** (-np.arange(half) / half)
        if self.scaling is None:
            return frequency
        return self.scaling(frequency, base=float(self.base))

    def __call__(
        self, q: jax.Array, k: jax.Array, place: Place | None = None
    ) -> tuple[jax.Array, jax.Array]:
        """Rotates queries and keys [batch, heads, seq, d_head], each in its dtype.

        `q` and `k` may have different numbers of heads. `place`: which positions they
        have, where these do not start at 0.
        """
        return self._rotate(q, place), self._rotate(k, place)

    def _rotate(self, x: jax.Array, place: Place | None) -> jax.Array:
        if x.shape[-1] != self.d_head:
            raise ValueError(f"expected last axis {self.d_head}, got shape {x.shape}")
        magnitude = 1.0 if self.scaling is None else self.scaling.magnitude
        wide = jnp.promote_types(x.dtype, jnp.float32)
        seq = x.shape[-2]
        cos = rows(lambda n: magnitude * np.cos(self._angles(n)), seq, place, wide)
        sin = rows(lambda n: magnitude * np.sin(self._angles(n)), seq, place, wide)
        turning, still = x[..., : self.d_rotary], x[..., self.d_rotary :]
        first, second = (part.astype(wide) for part in self._pairs(turning))
        y = [first * cos - second * sin, second * cos + first * sin]
        if self.layout == "half":
            y = jnp.concatenate(y, axis=-1)
        else:
            y = jnp.stack(y, axis=-1).reshape(turning.shape)
        y = y.astype(x.dtype)
        return y if not still.shape[-1] else jnp.concatenate([y, still], axis=-1)

    def _angles(self, seq: int) -> np.ndarray:
        """[seq, pairs], float64."""
        return np.arange(seq)[:, None] * self.frequencies()

    def _pairs(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        if self.layout == "half":
            half = self.d_rotary // 2
            return x[..., :half], x[..., half:]
        return x[..., ::2], x[..., 1::2]
