"""Root mean square normalization."""

import jax
import jax.numpy as jnp
from flax import nnx

from blocks.checks import check_choice
from blocks.norms.statistics import check_eps, scaled, widened

GAINS = ("ones", "zero_centred", "none")


class RMSNorm(nnx.Module):
    """Divides every token by its root mean square, without centring.

        y = g * x / sqrt(mean(x^2) + eps),      g = gain, 1 + gain, or 1

    mean over the last axis. With eps inside the root the multiplier never exceeds
    1 / sqrt(eps), so a token whose RMS is far below sqrt(eps) stays small; outside,
    x / (rms + eps), it does not exceed 1 / eps; clamp is x / max(rms, eps).

    Arithmetic in float32, or in the dtype of `x` where that is wider: squares of
    float16 values above 255 overflow. The result is rounded to the dtype of `x`
    once, after the gain (as OLMo 2, gpt-oss and Gemma do). With cast_before_gain the
    normalized token and the gain are rounded to the dtype of `x` first and multiplied
    in it (Llama, Qwen, T5), which differs in half precision only. |x| must stay below
    about 1e19, where squares leave float32.

    Parameters (float32, whatever the activation dtype), role in brackets:
        gain  [d_model]  init 1, or 0 where zero_centred  [gain]  none where "none"

    Source: arXiv 1910.07467 section 4; zero_centred: the Gemma models of
    huggingface/transformers; none: Llama4TextL2Norm there.
    Departure: the paper has no eps and its torch code adds 1e-8 outside the root;
    inside, with 1e-6, is what released language models do. On a half input with a
    float32 weight the Llama code returns float32; here the gain is rounded as well.
    """

    traced = ()

    @staticmethod
    def check(
        *,
        eps: float = 1e-6,
        gain: str = "ones",
        cast_before_gain: bool = False,
        eps_mode: str = "inside",
    ) -> None:
        """Raises ValueError for no such gain or mode, or an unsafe eps."""
        check_eps(eps, eps_mode)
        check_choice("gain", gain, GAINS)
        if cast_before_gain and gain == "none":
            raise ValueError("cast_before_gain needs a gain, got gain='none'")

    def __init__(
        self,
        d_model: int,
        *,
        eps: float = 1e-6,
        gain: str = "ones",
        cast_before_gain: bool = False,
        eps_mode: str = "inside",
        rngs: nnx.Rngs,
    ):
        """Args:
        d_model: size of the last axis of the input.
        eps: added to the mean square, or as `eps_mode` says.
        gain: ones (a learned factor that starts at 1), zero_centred (1 + a learned
            number that starts at 0, so that weight decay pulls to 1) or none.
        cast_before_gain: rounds before multiplying by the gain.
        eps_mode: inside, outside or clamp.
        rngs: unused (constant init); every normalizer takes it.
        """
        del rngs
        self.check(
            eps=eps, gain=gain, cast_before_gain=cast_before_gain, eps_mode=eps_mode
        )
        self.d_model = d_model
        self.eps = eps
        self.eps_mode = eps_mode
        self.is_zero_centred = gain == "zero_centred"
        self.cast_before_gain = cast_before_gain
        start = jnp.full((d_model,), 0 if self.is_zero_centred else 1, jnp.float32)
        self.gain = None if gain == "none" else nnx.Param(start, role="gain")

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps [..., d_model] to [..., d_model] in the dtype of `x`."""
        y = scaled(widened(x, self.d_model), self.eps, self.eps_mode)
        if self.gain is None:
            return y.astype(x.dtype)
        gain = self.gain[...]
        if self.is_zero_centred:
            gain = 1 + gain.astype(y.dtype)
        if self.cast_before_gain:
            return rounded(gain, x.dtype) * rounded(y, x.dtype)
        return (gain * y).astype(x.dtype)


def rounded(x: jax.Array, dtype) -> jax.Array:
    """`x` in `dtype`, with a rounding that XLA keeps.

    Inside jit XLA may take a float32 value rounded to bfloat16 and widened again for
    the product as the unrounded value (its excess-precision option; on CPU it does so
    for large arrays): a quarter of the outputs then differ in the last bit.
    reduce_precision is not taken out. For float16 it would round subnormal numbers to
    zero, and nothing is taken out there.
    """
    if dtype == jnp.bfloat16:
        x = jax.lax.reduce_precision(x, exponent_bits=8, mantissa_bits=7)
    return x.astype(dtype)
