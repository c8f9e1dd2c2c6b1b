"""Derf with a running estimate of the scale of its input (EMA-blend)."""

import math

import jax
import jax.numpy as jnp
from flax import nnx

from blocks.checks import check_finite, check_positive
from blocks.norms.statistics import widened
from blocks.state import Running


class EMABlendInput(nnx.Module):
    """Derf whose slope is divided by a blend of 1 and the scale of the input so far.

        y = gain * erf(alpha * x / ((1 - blend) + blend * (rms + eps)) + shift) + bias
        rms <- decay * rms + (1 - decay) * sqrt(mean(x^2)),  mean over all of the batch

    blend=1 is `ema_scale`: erf of the input in units of its running scale; blend=0 is
    Derf. One number per norm, so tokens keep their sizes relative to each other.

    The step uses the `rms` that earlier steps have left, so no token sees another one
    of its batch. The first step has none and uses that of its own batch, which it then
    leaves. No gradient flows through `rms`. With is_training=False `rms` is used and
    not moved on; before any step each call then uses its own.

    Arithmetic in float32, or in the dtype of `x` where that is wider; the result is
    rounded to the dtype of `x` once. The running value is float32.

    Parameters (float32, whatever the activation dtype), role in brackets:
        alpha  [1]        init `alpha_init`  [alpha]
        shift  [1]        init `shift_init`  [shift]
        gain   [d_model]  init 1             [gain]
        bias   [d_model]  init 0             [bias]
    State: rms [1], 0 until the first step.

    Source: a remedy of that name in arXiv 2604.01563, of which the formula is not
    published: this one, decay 0.99 and blend 0.5 are ours.
    """

    traced = ("alpha_init", "shift_init")
    has_state = True

    @staticmethod
    def check(
        *,
        alpha_init: float = 0.5,
        shift_init: float = 0.0,
        blend: float = 0.5,
        decay: float = 0.99,
        eps: float = 1e-6,
    ) -> None:
        """Raises ValueError for a number outside its range."""
        check_positive(alpha_init=alpha_init)
        check_finite(shift_init=shift_init)
        if not 0 <= blend <= 1:
            raise ValueError(f"blend must be in [0, 1], got {blend}")
        if not 0 <= decay < 1:
            raise ValueError(f"decay must be in [0, 1), got {decay}")
        if not (math.isfinite(eps) and eps >= 1e-30):
            raise ValueError(f"eps must be finite and >= 1e-30, got {eps}")

    def __init__(
        self,
        d_model: int,
        *,
        alpha_init: float = 0.5,
        shift_init: float = 0.0,
        blend: float = 0.5,
        decay: float = 0.99,
        eps: float = 1e-6,
        rngs: nnx.Rngs,
    ):
        """Args:
        d_model: size of the last axis of the input.
        alpha_init: initial slope; a number or a traced scalar.
        shift_init: initial offset inside erf; likewise.
        blend: weight of the running scale.
        decay: of the running scale, per step.
        eps: added to the running scale where it divides.
        rngs: unused (constant init); every normalizer takes it.
        """
        del rngs
        self.check(blend=blend, decay=decay, eps=eps)
        f32 = jnp.float32
        self.d_model = d_model
        self.blend = blend
        self.decay = decay
        self.eps = eps
        self.is_training = True
        self.alpha = nnx.Param(jnp.full((1,), alpha_init, f32), role="alpha")
        self.shift = nnx.Param(jnp.full((1,), shift_init, f32), role="shift")
        self.gain = nnx.Param(jnp.ones((d_model,), f32), role="gain")
        self.bias = nnx.Param(jnp.zeros((d_model,), f32), role="bias")
        self.rms = Running(jnp.zeros((1,), f32))

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps [..., d_model] to [..., d_model] in the dtype of `x`."""
        wide = widened(x, self.d_model)
        scale = self.scale_so_far(wide)
        y = self.gain[...] * self.blended(wide, scale + self.eps) + self.bias[...]
        return y.astype(x.dtype)

    def blended(self, x: jax.Array, scale: jax.Array) -> jax.Array:
        """What stands between gain and bias."""
        return self.f(self._z(x, scale))

    def _z(self, x: jax.Array, scale: jax.Array) -> jax.Array:
        slope = self.alpha[...] / ((1 - self.blend) + self.blend * scale)
        return slope * x + self.shift[...]

    def scale_so_far(self, x: jax.Array) -> jax.Array:
        """The running scale [1] to use with `x`; in training, moves it on by `x`."""
        used, own = self._scales(x)
        if self.is_training:
            moved = self.decay * used + (1 - self.decay) * own
            self.rms[...] = moved.astype(self.rms[...].dtype)
        return used

    def _scales(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The running scale [1] to use with `x`, and that of `x` itself."""
        stored = self.rms[...]
        own = jnp.sqrt(jnp.mean(jnp.square(jax.lax.stop_gradient(x)), keepdims=True))
        own = own.reshape(1)
        return jnp.where(stored == 0, own, stored), own

    # z and f by these names: probes look at them (blocks.norms.looks).

    def z(self, x: jax.Array) -> jax.Array:
        return self._z(x, self._scales(x)[0] + self.eps)

    def f(self, z: jax.Array) -> jax.Array:
        return jax.lax.erf(z)


class EMABlendOutput(EMABlendInput):
    """Derf mixed with the input in units of its running scale.

        y = gain * ((1 - blend) * erf(alpha * x + shift) + blend * x / (rms + eps)) + bias

    Parameters, state and source as of `EMABlendInput`. Not bounded for blend > 0.
    """

    z = None  # what stands between gain and bias is no function of one number

    def blended(self, x: jax.Array, scale: jax.Array) -> jax.Array:
        squashed = jax.lax.erf(self.alpha[...] * x + self.shift[...])
        return (1 - self.blend) * squashed + (self.blend / scale) * x
