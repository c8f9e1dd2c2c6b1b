"""Kaiming (He) uniform initialization."""

import dataclasses
import math

import jax
import jax.numpy as jnp

from blocks.inits.kaiming import Kaiming


@dataclasses.dataclass(frozen=True, kw_only=True)
class KaimingUniform(Kaiming):
    """The variance of `Kaiming`, drawn between two bounds.

        kernel     U(-b, b),  b = sqrt(6 / fan_in)    use = "hidden"
                              b = sqrt(3 / fan_in)    every other use
        embedding  N(0, embedding_std^2)
        bias       U(-1 / sqrt(fan_in), 1 / sqrt(fan_in))

    Attributes: as in `Kaiming`.

    Source: arXiv 1502.01852 equations 10 and 14; torch.nn.init.kaiming_uniform_ with
    nonlinearity "relu" (hidden) and "linear".
    """

    def kernel(
        self, key: jax.Array, shape: tuple[int, int], use: str, *, layer, n_sublayers
    ) -> jax.Array:
        """Draws a kernel [d_in, d_out] for its use; depth plays no part."""
        del layer, n_sublayers
        bound = math.sqrt((6 if use == "hidden" else 3) / shape[0])
        return jax.random.uniform(key, shape, jnp.float32, -bound, bound)
