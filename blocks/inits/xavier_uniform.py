"""Xavier (Glorot) uniform initialization."""

import dataclasses
import math

import jax
import jax.numpy as jnp

from blocks.inits.xavier import XavierGaussian


@dataclasses.dataclass(frozen=True, kw_only=True)
class XavierUniform(XavierGaussian):
    """The variance of `XavierGaussian`, drawn between two bounds.

        kernel     U(-b, b),  b = gain * sqrt(6 / (fan_in + fan_out))    every use alike
        embedding  N(0, embedding_std^2)
        bias       0

    Attributes: as in `XavierGaussian`.

    Source: Glorot and Bengio 2010 equation 16; torch.nn.init.xavier_uniform_.
    """

    def kernel(
        self, key: jax.Array, shape: tuple[int, int], use: str, *, layer, n_sublayers
    ) -> jax.Array:
        """Draws a kernel [d_in, d_out]; only its shape matters."""
        del use, layer, n_sublayers
        fan_in, fan_out = shape
        bound = jnp.asarray(self.gain, jnp.float32) * math.sqrt(6 / (fan_in + fan_out))
        return bound * jax.random.uniform(key, shape, jnp.float32, -1, 1)
