"""Dynamic inverse square root unit (DyISRU): RMSNorm with the other features frozen."""

import math

import jax
import jax.numpy as jnp
from flax import nnx

from blocks.checks import check_finite
from blocks.norms.squashers import isru
from blocks.norms.statistics import widened


class DyISRU(nnx.Module):
    """Divides every feature by a root of its own square and a learned constant.

        y = gain * x / sqrt(B + x^2) + bias,    B = softplus(rho) + floor

    What RMSNorm is to one feature when the squares of all others are held at a
    constant. The slope at zero is gain / sqrt(B), so B = 1 / alpha^2 is the one to
    compare with DyT. |y| <= |gain| + |bias|; in the tails the slope falls as |x|^-3,
    where those of tanh and erf are exactly zero.

    Arithmetic in float32, or in the dtype of `x` where that is wider; the result is
    rounded to the dtype of `x` once. |x| must stay below about 1e19 sqrt(B).

    Parameters (float32, whatever the activation dtype), role in brackets:
        rho   [1]        such that B starts at `beta_init`  [alpha]
        gain  [d_model]  init `gain_init`                   [gain]
        bias  [d_model]  init 0                             [bias]  absent with bias=False

    Source: arXiv 2503.21708. The paper has sqrt(d_model) * x / sqrt(B + x^2) without
    gain: gain_init=sqrt(d_model) starts there.
    Departure: B through softplus and a floor, which keep it positive; the paper has no
    training experiments and no initial value.
    """

    traced = ("beta_init", "gain_init")

    @staticmethod
    def check(
        *,
        beta_init: float = 4.0,
        gain_init: float = 1.0,
        floor: float = 1e-6,
        bias: bool = True,
    ) -> None:
        """Raises ValueError for a B or a floor that is not positive and finite."""
        tiny = float(jnp.finfo(jnp.float32).tiny)
        if not (math.isfinite(floor) and floor >= tiny):
            raise ValueError(f"floor must be finite and >= {tiny:.3g}, got {floor}")
        if not (math.isfinite(beta_init) and beta_init >= 2 * floor):
            raise ValueError(
                f"beta_init must be finite and at least 2 floor={2 * floor}, "
                f"got {beta_init}"
            )
        check_finite(gain_init=gain_init)

    def __init__(
        self,
        d_model: int,
        *,
        beta_init: float = 4.0,
        gain_init: float = 1.0,
        floor: float = 1e-6,
        bias: bool = True,
        rngs: nnx.Rngs,
    ):
        """Args:
        d_model: size of the last axis of the input.
        beta_init: initial B; a number or a traced scalar.
        gain_init: initial gain of all features; likewise.
        floor: B stays above it.
        bias: learns an offset.
        rngs: unused (constant init); every normalizer takes it.
        """
        del rngs
        f32 = jnp.float32
        self.d_model = d_model
        self.floor = floor
        start = jnp.full((1,), beta_init, f32) - f32(floor)
        # softplus^-1(b) = ln(e^b - 1), without the overflow at b = 89
        rho = start + jnp.log(-jnp.expm1(-start))
        self.rho = nnx.Param(rho, role="alpha")
        self.gain = nnx.Param(jnp.full((d_model,), gain_init, f32), role="gain")
        zeros = jnp.zeros((d_model,), f32)
        self.bias = nnx.Param(zeros, role="bias") if bias else None

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps [..., d_model] to [..., d_model] in the dtype of `x`."""
        wide = widened(x, self.d_model)
        y = self.gain[...] * self.f(self.z(wide))
        if self.bias is not None:
            y = y + self.bias[...]
        return y.astype(x.dtype)

    # z and f by these names: probes look at them (blocks.norms.looks).

    def z(self, x: jax.Array) -> jax.Array:
        beta = jax.nn.softplus(self.rho[...].astype(x.dtype)) + self.floor
        return x * jax.lax.rsqrt(beta)

    def f(self, z: jax.Array) -> jax.Array:
        return isru(z)
