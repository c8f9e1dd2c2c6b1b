"""Xavier (Glorot) normal initialization."""

import dataclasses
import math

import jax
import jax.numpy as jnp

from blocks.checks import check_positive


@dataclasses.dataclass(frozen=True, kw_only=True)
class XavierGaussian:
    """Keeps variance half-way between the forward and the backward pass.

        kernel     N(0, gain^2 * 2 / (fan_in + fan_out))    every use alike
        embedding  N(0, embedding_std^2)
        bias       0

    fan_in and fan_out are those of the whole kernel: a query kernel
    [d_model, n_heads * d_head] counts all its heads. All draws are float32.

    Attributes:
        gain: factor on the standard deviation; a number or a traced scalar.
        embedding_std: standard deviation of the token table; likewise.

    Source: Glorot and Bengio 2010; torch.nn.init.xavier_normal_; the setting of
    the Pre-LN analysis, arXiv 2002.04745.
    """

    gain: float = 1.0
    embedding_std: float = 1.0

    traced = ("gain", "embedding_std")

    @staticmethod
    def check(*, gain: float = 1.0, embedding_std: float = 1.0) -> None:
        """Raises ValueError for values that make no network."""
        check_positive(gain=gain, embedding_std=embedding_std)

    def kernel(
        self, key: jax.Array, shape: tuple[int, int], use: str, *, layer, n_sublayers
    ) -> jax.Array:
        """Draws a kernel [d_in, d_out]; only its shape matters."""
        del use, layer, n_sublayers
        fan_in, fan_out = shape
        gain = jnp.asarray(self.gain, jnp.float32)
        std = gain * math.sqrt(2 / (fan_in + fan_out))
        return std * jax.random.normal(key, shape, jnp.float32)

    def bias(self, key: jax.Array, shape: tuple[int], fan_in: int) -> jax.Array:
        """Zeros."""
        del key, fan_in
        return jnp.zeros(shape, jnp.float32)

    def embedding(self, key: jax.Array, shape: tuple[int, int]) -> jax.Array:
        """Draws a token table [vocab_size, d_model]."""
        std = jnp.asarray(self.embedding_std, jnp.float32)
        return std * jax.random.normal(key, shape, jnp.float32)
