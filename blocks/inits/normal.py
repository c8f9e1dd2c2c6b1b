"""Normal initialization with one standard deviation, as in GPT-2."""

import dataclasses

import jax
import jax.numpy as jnp

from blocks.checks import check_finite, check_positive


@dataclasses.dataclass(frozen=True, kw_only=True)
class Normal:
    """One standard deviation for every kernel, smaller where a branch ends.

        kernel     N(0, std^2)
        output     N(0, (std * n_sublayers**-depth_power)^2)    use = "output"
        embedding  N(0, embedding_std^2)
        bias       0

    With L blocks of two sub-layers and depth_power = 0.5 the factor on the
    kernels that write to the residual stream is GPT-2's 1 / sqrt(2 L), so the sum
    of all branches does not grow with depth; depth_power = 0 switches it off.
    All draws are float32.

    Attributes:
        std: standard deviation of a kernel; a number or a traced scalar.
        embedding_std: that of the token table; likewise.
        depth_power: exponent of the number of sub-layers; likewise.

    Source: GPT-2; transformers 5.24.0 models/gpt2/modeling_gpt2.py, _init_weights.
    """

    std: float = 0.02
    embedding_std: float = 0.02
    depth_power: float = 0.5

    traced = ("std", "embedding_std", "depth_power")

    @staticmethod
    def check(
        *, std: float = 0.02, embedding_std: float = 0.02, depth_power: float = 0.5
    ) -> None:
        """Raises ValueError for values that make no network."""
        check_positive(std=std, embedding_std=embedding_std)
        check_finite(depth_power=depth_power)

    def kernel(
        self, key: jax.Array, shape: tuple[int, int], use: str, *, layer, n_sublayers
    ) -> jax.Array:
        """Draws a kernel [d_in, d_out]; `layer` plays no part here."""
        del layer
        std = jnp.asarray(self.std, jnp.float32)
        if use == "output":
            depth = jnp.asarray(n_sublayers, jnp.float32)
            std *= depth ** -jnp.asarray(self.depth_power, jnp.float32)
        return std * jax.random.normal(key, shape, jnp.float32)

    def bias(self, key: jax.Array, shape: tuple[int], fan_in: int) -> jax.Array:
        """Zeros."""
        del key, fan_in
        return jnp.zeros(shape, jnp.float32)

    def embedding(self, key: jax.Array, shape: tuple[int, int]) -> jax.Array:
        """Draws a token table [vocab_size, d_model]."""
        std = jnp.asarray(self.embedding_std, jnp.float32)
        return std * jax.random.normal(key, shape, jnp.float32)
