"""What torch.nn.Linear and torch.nn.Embedding draw when nothing else is asked."""

import dataclasses
import math

import jax
import jax.numpy as jnp

from blocks.checks import check_positive


@dataclasses.dataclass(frozen=True, kw_only=True)
class TorchDefault:
    """Uniform kernels and biases with the bound 1 / sqrt(fan_in).

        kernel, bias  U(-1 / sqrt(fan_in), 1 / sqrt(fan_in))
        embedding     N(0, embedding_std^2)

    The standard deviation of a kernel is 1 / sqrt(3 fan_in): sqrt(6) smaller than
    Kaiming's, so a deep ReLU stack without normalizers fades. All draws are
    float32.

    Attributes:
        embedding_std: standard deviation of the token table; a number or a traced
            scalar. torch.nn.Embedding has 1.

    Source: torch 2.13.0, torch/nn/modules/linear.py, reset_parameters
    (kaiming_uniform_ with a = sqrt(5)).
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
        """Draws a kernel [d_in, d_out]; only its fan-in matters."""
        del use, layer, n_sublayers
        bound = 1 / math.sqrt(shape[0])
        return jax.random.uniform(key, shape, jnp.float32, -bound, bound)

    def bias(self, key: jax.Array, shape: tuple[int], fan_in: int) -> jax.Array:
        """Draws a bias [d_out] behind a kernel of `fan_in` inputs."""
        bound = 1 / math.sqrt(fan_in)
        return jax.random.uniform(key, shape, jnp.float32, -bound, bound)

    def embedding(self, key: jax.Array, shape: tuple[int, int]) -> jax.Array:
        """Draws a token table [vocab_size, d_model]."""
        std = jnp.asarray(self.embedding_std, jnp.float32)
        return std * jax.random.normal(key, shape, jnp.float32)
