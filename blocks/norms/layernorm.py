"""Layer normalization."""

import jax
import jax.numpy as jnp
from flax import nnx

from blocks.norms.statistics import centred_and_scaled, check_eps, widened


class LayerNorm(nnx.Module):
    """Centres every token and divides it by its standard deviation.

        y = gain * (x - mean) / sqrt(var + eps) + bias

    mean and var over the last axis, var with divisor d_model and in two passes:
    mean(x^2) - mean(x)^2 loses all digits when the mean is a few thousand standard
    deviations. eps is inside the root; the multiplier never exceeds 1 / sqrt(eps).

    Arithmetic in float32, or in the dtype of `x` where that is wider; the result is
    rounded to the dtype of `x` once, after gain and bias. Deviations from the mean
    must stay below about 1e19, where their squares leave float32.

    Parameters (float32, whatever the activation dtype), role in brackets:
        gain  [d_model]  init 1  [gain]
        bias  [d_model]  init 0  [bias]

    gain=False, bias=False is the parameter-free form of OLMo 1.

    Source: arXiv 1607.06450 section 3. eps 1e-5 as in torch; Flax has 1e-6.
    """

    traced = ()

    @staticmethod
    def check(*, eps: float = 1e-5, bias: bool = True, gain: bool = True) -> None:
        """Raises ValueError for an eps that cannot protect the root."""
        check_eps(eps)

    def __init__(
        self,
        d_model: int,
        *,
        eps: float = 1e-5,
        bias: bool = True,
        gain: bool = True,
        rngs: nnx.Rngs,
    ):
        """Args:
        d_model: size of the last axis of the input.
        eps: added to the variance.
        bias: learns an offset.
        gain: learns a scale.
        rngs: unused (constant init); every normalizer takes it.
        """
        del rngs
        self.check(eps=eps)
        self.d_model = d_model
        self.eps = eps
        ones, zeros = (
            jnp.ones((d_model,), jnp.float32),
            jnp.zeros((d_model,), jnp.float32),
        )
        self.gain = nnx.Param(ones, role="gain") if gain else None
        self.bias = nnx.Param(zeros, role="bias") if bias else None

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps [..., d_model] to [..., d_model] in the dtype of `x`."""
        y = centred_and_scaled(widened(x, self.d_model), self.eps)
        if self.gain is not None:
            y = self.gain[...] * y
        if self.bias is not None:
            y = y + self.bias[...]
        return y.astype(x.dtype)
