"""Dynamic tanh (DyT): a pointwise replacement for a normalization layer."""

import jax
import jax.numpy as jnp
from flax import nnx

from blocks.norms.alphas import check_alpha_init, published_alpha
from blocks.norms.statistics import widened


class DyT(nnx.Module):
    """Squashes every feature with a tanh of learned slope.

        y = gain * tanh(alpha * x) + bias

    No statistic is taken over any axis: the scale of `x` is not divided out, and
    |y| <= |gain| + |bias|. Far in the tails (|alpha * x| > 9 in float32) the
    gradient is exactly zero.

    Arithmetic in float32, or in the dtype of `x` where that is wider; the result is
    rounded to the dtype of `x` once.

    Parameters (float32, whatever the activation dtype), role in brackets:
        alpha  [1]        init `alpha_init`  [alpha]
        gain   [d_model]  init 1             [gain]
        bias   [d_model]  init 0             [bias]   absent with bias=False

    Language models: alpha_init="auto" takes the paper's slopes by width and site (see
    `blocks.norms.alphas`). The paper's LLaMA has no bias, and a learned factor on the
    embedding that starts at sqrt(d_model): without it the first inputs are tiny.

    Source: arXiv 2503.10622 section 4; jiachenzhu/DyT dynamic_tanh.py and
    other_tasks/LLaMA.
    Departure: the reference computes in the input dtype.
    """

    traced = ("alpha_init",)

    @staticmethod
    def check(*, alpha_init: float | str = 0.5, bias: bool = True) -> None:
        """Raises ValueError for a slope that is not positive and finite."""
        check_alpha_init(alpha_init)

    def __init__(
        self,
        d_model: int,
        *,
        alpha_init: float | str = 0.5,
        bias: bool = True,
        site: str | None = None,
        rngs: nnx.Rngs,
    ):
        """Args:
        d_model: size of the last axis of the input.
        alpha_init: initial slope; a number, a traced scalar, or "auto".
        bias: learns an offset.
        site: where the norm sits; "auto" needs it.
        rngs: unused (constant init); every normalizer takes it.
        """
        del rngs
        if isinstance(alpha_init, str):
            check_alpha_init(alpha_init)
            alpha_init = published_alpha(d_model, site)
        f32 = jnp.float32
        self.d_model = d_model
        self.alpha = nnx.Param(jnp.full((1,), alpha_init, f32), role="alpha")
        self.gain = nnx.Param(jnp.ones((d_model,), f32), role="gain")
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
        return self.alpha[...] * x

    def f(self, z: jax.Array) -> jax.Array:
        return jnp.tanh(z)
