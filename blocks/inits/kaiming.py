"""Kaiming (He) normal initialization."""

import dataclasses
import math

import jax
import jax.numpy as jnp

from blocks.checks import check_positive


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kaiming:
    """Keeps the mean square through a ReLU, and through a linear map.

        kernel     N(0, 2 / fan_in)    use = "hidden": a ReLU follows and halves it
                   N(0, 1 / fan_in)    every other use
        embedding  N(0, embedding_std^2)
        bias       U(-1 / sqrt(fan_in), 1 / sqrt(fan_in))

    The biases are those of torch.nn.Linear, which keeps them when only its weights
    are drawn again. All draws are float32.

    Attributes:
        embedding_std: standard deviation of the token table; a number or a traced
            scalar.

    Source: arXiv 1502.01852 equations 10 and 14; torch.nn.init.kaiming_normal_ with
    nonlinearity "relu" (W1) and "linear" (W2).
    """

    embedding_std: float = 1.0

    traced = ("embedding_std",)

    @staticmethod
    def check(*, embedding_std: float = 1.0) -> None:
        """Raises ValueError for values that make no network."""
        check_positive(embedding_std=embedding_std)

    def kernel(
        self, key: jax.Array, shape: tuple[int, int], use: str, *, layer, n_sublayers
    ) -> jax.Array:
        """Draws a kernel [d_in, d_out] for its use; depth plays no part."""
        del layer, n_sublayers
        std = math.sqrt((2 if use == "hidden" else 1) / shape[0])
        return std * jax.random.normal(key, shape, jnp.float32)

    def bias(self, key: jax.Array, shape: tuple[int], fan_in: int) -> jax.Array:
        """Draws a bias [d_out] behind a kernel of `fan_in` inputs."""
        bound = 1 / math.sqrt(fan_in)
        return jax.random.uniform(key, shape, jnp.float32, -bound, bound)

    def embedding(self, key: jax.Array, shape: tuple[int, int]) -> jax.Array:
        """Draws a token table [vocab_size, d_model]."""
        std = jnp.asarray(self.embedding_std, jnp.float32)
        return std * jax.random.normal(key, shape, jnp.float32)
