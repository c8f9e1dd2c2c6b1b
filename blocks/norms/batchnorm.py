"""Batch normalization over all tokens of a batch."""

import jax
import jax.numpy as jnp
from flax import nnx

from blocks.norms.statistics import check_eps, reciprocal_root, widened
from blocks.state import Running


class BatchNorm(nnx.Module):
    """Centres and scales every feature over all tokens of all sequences.

        y = gain * (x - mean) / sqrt(var + eps) + bias

    In training mean and var are those of the batch, per feature, over every axis but
    the last, var with divisor n. So a token sees later tokens and other sequences:
    the training loss of a causal language model normalized in this way is not valid.
    Outside training they are the running ones and y is a fixed affine map.

        running = momentum * running + (1 - momentum) * of the batch

    Statistics are taken in float32, or in the dtype of `x` where that is wider, var in
    a second pass; the result is rounded to the dtype of `x` once. No gradient goes
    through the running statistics, and each training call moves them on once. There is
    no mask: every token counts. Of one token alone y is the bias.

    Parameters (float32, whatever the activation dtype), role in brackets:
        gain  [d_model]  init 1  [gain]
        bias  [d_model]  init 0  [bias]
    State (float32), not trained:
        mean  [d_model]  init 0
        var   [d_model]  init 1

    Source: arXiv 1502.03167 algorithms 1 and 2, over batch and time. The running rule
    is that of flax.nnx; momentum=0.9, unbiased=True is that of torch, which calls the
    same momentum 0.1 and keeps var with divisor n - 1.
    """

    traced = ()
    mixes_tokens = True
    has_state = True

    @staticmethod
    def check(
        *, eps: float = 1e-5, momentum: float = 0.99, unbiased: bool = False
    ) -> None:
        """Raises ValueError for an unsafe eps or a momentum that is no fraction."""
        check_eps(eps)
        if not 0 <= momentum <= 1:
            raise ValueError(f"momentum must be from 0 to 1, got {momentum}")

    def __init__(
        self,
        d_model: int,
        *,
        eps: float = 1e-5,
        momentum: float = 0.99,
        unbiased: bool = False,
        rngs: nnx.Rngs,
    ):
        """Args:
        d_model: size of the last axis of the input.
        eps: added to the variance.
        momentum: what is kept of the running statistics at each step.
        unbiased: the running variance has divisor n - 1; y never does.
        rngs: unused (constant init); every normalizer takes it.
        """
        del rngs
        self.check(eps=eps, momentum=momentum)
        self.d_model = d_model
        self.eps = eps
        self.momentum = momentum
        self.unbiased = unbiased
        self.is_training = True
        f32 = jnp.float32
        self.gain = nnx.Param(jnp.ones((d_model,), f32), role="gain")
        self.bias = nnx.Param(jnp.zeros((d_model,), f32), role="bias")
        self.mean = Running(jnp.zeros((d_model,), f32))
        self.var = Running(jnp.ones((d_model,), f32))

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps [..., d_model] to [..., d_model] in the dtype of `x`."""
        wide = widened(x, self.d_model)
        if self.is_training:
            tokens = tuple(range(x.ndim - 1))
            mean = jnp.mean(wide, axis=tokens)
            centred = wide - mean
            var = jnp.mean(jnp.square(centred), axis=tokens)
            self._move(mean, var, n=x.size // self.d_model)
        else:
            centred, var = wide - self.mean[...], self.var[...].astype(wide.dtype)
        multiplier = self.gain[...] * reciprocal_root(var, self.eps)
        return (centred * multiplier + self.bias[...]).astype(x.dtype)

    def _move(self, mean: jax.Array, var: jax.Array, n: int) -> None:
        if self.unbiased:
            var = var * (n / max(n - 1, 1))
        for running, new in ((self.mean, mean), (self.var, var)):
            new = jax.lax.stop_gradient(new)
            moved = self.momentum * running[...] + (1 - self.momentum) * new
            running[...] = moved.astype(running[...].dtype)
