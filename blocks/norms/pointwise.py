"""Any squashing function in the place of a normalizer."""

import jax
import jax.numpy as jnp
from flax import nnx

from blocks.checks import check_choice, check_finite, check_positive
from blocks.norms.squashers import FUNCTIONS
from blocks.norms.statistics import widened
from blocks.state import Running


class Pointwise(nnx.Module):
    """Passes every feature through one function of learned slope and offset.

        y = gain * f(alpha * x + shift) + bias

    f is odd, and but for `identity` bounded by 1. The gradient in x is not divided by
    the scale of x, as that of a normalizer is; it dies where f is flat. exproot and
    power23clip are infinitely steep at zero: at z = 0 itself their slope counts as 0,
    and beside it gradients are large (5e9 at z = 1e-20).

    Arithmetic in float32, or in the dtype of `x` where that is wider; the result is
    rounded to the dtype of `x` once.

    Parameters (float32, whatever the activation dtype), role in brackets; each is left
    out by the keyword of its name:
        alpha  [1]        init `alpha_init`  [alpha]  alpha=False: stays at alpha_init
        shift  [1]        init `shift_init`  [shift]
        gain   [d_model]  init 1             [gain]
        bias   [d_model]  init 0             [bias]

    Source: arXiv 2512.10938 table 7; zlab-princeton/Derf ViT/other_functions. tanh
    without shift is DyT and erf is Derf, which have classes of their own.
    Departure: the reference computes in the input dtype, and gives gradient 0 at z = 0
    to the functions it writes with sign(z) (except that exproot gives NaN).
    """

    traced = ("alpha_init", "shift_init")

    @staticmethod
    def has_state(*, alpha: bool = True, **_) -> bool:
        """An alpha that is not learned is kept as state: members may differ in it."""
        return not alpha

    @staticmethod
    def check(
        *,
        function: str = "tanh",
        alpha_init: float = 0.5,
        shift_init: float = 0.0,
        alpha: bool = True,
        shift: bool = True,
        gain: bool = True,
        bias: bool = True,
    ) -> None:
        """Raises ValueError for an unknown function, or numbers that cannot be."""
        check_choice("function", function, FUNCTIONS)
        check_positive(alpha_init=alpha_init)
        check_finite(shift_init=shift_init)
        if shift_init and not shift:
            raise ValueError(f"shift_init must be 0 without a shift, got {shift_init}")

    def __init__(
        self,
        d_model: int,
        *,
        function: str = "tanh",
        alpha_init: float = 0.5,
        shift_init: float = 0.0,
        alpha: bool = True,
        shift: bool = True,
        gain: bool = True,
        bias: bool = True,
        rngs: nnx.Rngs,
    ):
        """Args:
        d_model: size of the last axis of the input.
        function: f, a key of `blocks.norms.squashers.FUNCTIONS`.
        alpha_init: initial slope; a number or a traced scalar.
        shift_init: initial offset inside f; likewise.
        alpha, shift, gain, bias: learn it.
        rngs: unused (constant init); every normalizer takes it.
        """
        del rngs
        self.check(function=function)
        f32 = jnp.float32
        self.d_model = d_model
        self.function = function
        slope, offset = (jnp.full((1,), init, f32) for init in (alpha_init, shift_init))
        ones, zeros = jnp.ones((d_model,), f32), jnp.zeros((d_model,), f32)
        self.alpha = nnx.Param(slope, role="alpha") if alpha else Running(slope)
        self.shift = nnx.Param(offset, role="shift") if shift else None
        self.gain = nnx.Param(ones, role="gain") if gain else None
        self.bias = nnx.Param(zeros, role="bias") if bias else None

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps [..., d_model] to [..., d_model] in the dtype of `x`."""
        wide = widened(x, self.d_model)
        y = self.f(self.z(wide))
        if self.gain is not None:
            y = self.gain[...] * y
        if self.bias is not None:
            y = y + self.bias[...]
        return y.astype(x.dtype)

    # z and f by these names: probes look at them (blocks.norms.looks).

    def z(self, x: jax.Array) -> jax.Array:
        z = self.alpha[...] * x
        return z if self.shift is None else z + self.shift[...]

    def f(self, z: jax.Array) -> jax.Array:
        return FUNCTIONS[self.function](z)
