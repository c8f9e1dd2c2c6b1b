"""LeCun normal initialization: one over the fan-in, as in Flax and T5."""

import dataclasses
import math

import jax
import jax.numpy as jnp

from blocks.checks import check_positive


@dataclasses.dataclass(frozen=True, kw_only=True)
class LeCun:
    """Keeps the mean square through every linear map.

        kernel     N(0, 1 / fan_in)
        query      N(0, query_scale^2 / fan_in)    use = "query"
        embedding  N(0, embedding_std^2)
        bias       0

    T5 does not divide its attention scores by sqrt(d_head); it draws the query
    kernel with query_scale = 1 / sqrt(d_head) instead (0.125 at its d_head = 64).
    With attention that divides, leave query_scale at 1. All draws are float32.

    Attributes:
        query_scale: factor on the standard deviation of query kernels; a number or a
            traced scalar.
        embedding_std: standard deviation of the token table; likewise.

    Source: LeCun et al. 1998, Efficient BackProp, equation 16; transformers 5.24.0
    models/t5/modeling_t5.py, _init_weights.
    """

    query_scale: float = 1.0
    embedding_std: float = 1.0

    traced = ("query_scale", "embedding_std")

    @staticmethod
    def check(*, query_scale: float = 1.0, embedding_std: float = 1.0) -> None:
        """Raises ValueError for values that make no network."""
        check_positive(query_scale=query_scale, embedding_std=embedding_std)

    def kernel(
        self, key: jax.Array, shape: tuple[int, int], use: str, *, layer, n_sublayers
    ) -> jax.Array:
        """Draws a kernel [d_in, d_out]; depth plays no part."""
        del layer, n_sublayers
        std = jnp.asarray(1 / math.sqrt(shape[0]), jnp.float32)
        if use == "query":
            std *= jnp.asarray(self.query_scale, jnp.float32)
        return std * jax.random.normal(key, shape, jnp.float32)

    def bias(self, key: jax.Array, shape: tuple[int], fan_in: int) -> jax.Array:
        """Zeros."""
        del key, fan_in
        return jnp.zeros(shape, jnp.float32)

    def embedding(self, key: jax.Array, shape: tuple[int, int]) -> jax.Array:
        """Draws a token table [vocab_size, d_model]."""
        std = jnp.asarray(self.embedding_std, jnp.float32)
        return std * jax.random.normal(key, shape, jnp.float32)
