"""Dynamic erf (Derf): the error function in the place of a normalizer."""

import jax
import jax.numpy as jnp
from flax import nnx

from blocks.checks import check_finite
from blocks.norms.alphas import ERF_PER_TANH, check_alpha_init, published_alpha
from blocks.norms.statistics import widened


class Derf(nnx.Module):
    """Passes every feature through an error function of learned slope and offset.

        y = gain * erf(alpha * x + shift) + bias

    Tokens and features do not interact and the scale of `x` is not divided out;
    |y| <= |gain| + |bias|. erf(z) is close to tanh(1.205 z), so the DyT to compare
    with has 1.205 times this alpha.

    Arithmetic in float32, or in the dtype of `x` where that is wider; the result is
    rounded to the dtype of `x` once. In bfloat16 erf would reach 1 at z = 2.2.

    Parameters (float32, whatever the activation dtype), role in brackets:
        alpha  [1]        init `alpha_init`  [alpha]  slope at zero: 2 alpha / sqrt(pi)
        shift  [1]        init `shift_init`  [shift]  absent with shift=False
        gain   [d_model]  init 1             [gain]
        bias   [d_model]  init 0             [bias]   absent with bias=False

    Language models: the paper's GPT-2 searched alpha_init in 0.5 to 4 before attention
    and 0.1 to 1 elsewhere and does not print what won; its code begins with 1, and
    has, as DyT, a learned factor on the embedding that starts at sqrt(d_model).
    alpha_init="auto" is ours: the slopes published for DyT by width and site (see
    `blocks.norms.alphas`) divided by 1.205.

    Source: arXiv 2512.10938 section 5, equation 10, and appendix C;
    zlab-princeton/Derf ViT/dynamic_erf.py. 0.5 is the vision default.
    Departure: the reference computes in the input dtype.
    """

    traced = ("alpha_init", "shift_init")

    @staticmethod
    def check(
        *,
        alpha_init: float | str = 0.5,
        shift_init: float = 0.0,
        shift: bool = True,
        bias: bool = True,
    ) -> None:
        """Raises ValueError for a slope not positive, or anything not finite."""
        check_alpha_init(alpha_init)
        check_finite(shift_init=shift_init)
        if shift_init and not shift:
            raise ValueError(f"shift_init must be 0 without a shift, got {shift_init}")

    def __init__(
        self,
        d_model: int,
        *,
        alpha_init: float | str = 0.5,
        shift_init: float = 0.0,
        shift: bool = True,
        bias: bool = True,
        site: str | None = None,
        rngs: nnx.Rngs,
    ):
        """Args:
        d_model: size of the last axis of the input.
        alpha_init: initial slope; a number, a traced scalar, or "auto".
        shift_init: initial offset inside erf; a number or a traced scalar.
        shift, bias: learn an offset inside erf, and one outside.
        site: where the norm sits; "auto" needs it.
        rngs: unused (constant init); every normalizer takes it.
        """
        del rngs
        if isinstance(alpha_init, str):
            check_alpha_init(alpha_init)
            alpha_init = published_alpha(d_model, site) / ERF_PER_TANH
        f32 = jnp.float32
        self.d_model = d_model
        self.alpha = nnx.Param(jnp.full((1,), alpha_init, f32), role="alpha")
        offset, zeros = jnp.full((1,), shift_init, f32), jnp.zeros((d_model,), f32)
        self.shift = nnx.Param(offset, role="shift") if shift else None
        self.gain = nnx.Param(jnp.ones((d_model,), f32), role="gain")
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
        z = self.alpha[...] * x
        return z if self.shift is None else z + self.shift[...]

    def f(self, z: jax.Array) -> jax.Array:
        return jax.lax.erf(z)
