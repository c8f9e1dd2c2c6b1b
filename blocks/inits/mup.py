"""Maximal-update initialization: widths compared with a width that was tuned."""

import dataclasses

import jax
import jax.numpy as jnp

from blocks.checks import check_choice, check_positive, check_sizes

HEADS = ("zero", "width")


@dataclasses.dataclass(frozen=True, kw_only=True)
class MuP:
    """The initial values of muP, for m = d_model / base_width.

        kernel     N(0, std^2 / m)               hidden, query, key, value, output
        head       0                             head = "zero"
                   N(0, (std / m)^2)             head = "width"
        embedding  N(0, embedding_std^2)
        bias       0

    d_model is read off the kernel: d_out of an output kernel, d_in of any other.
    At d_model = base_width every kernel has `std`. "zero" is what the authors
    recommend: the logits then start at zero at every width. There is no factor of
    depth: CompleteP scales branches instead (`residual`), and 1 / sqrt(n_sublayers)
    on top of it would count depth twice.

    This is a third of muP. The others are attention scores over d_head instead of
    sqrt(d_head), and the learning rate (and decay) of each kind of parameter. All
    draws are float32.

    Attributes:
        std: standard deviation at the base width; a number or a traced scalar.
        base_width: the width whose hyperparameters are carried over; likewise.
        embedding_std: that of the token table; likewise.
        head: how an untied unembedding starts, "zero" or "width".

    Source: arXiv 2203.03466 table 3 (a head of variance 1 / fan_in^2) and section
    D.2 (zero); hidden kernels as in EleutherAI/nanoGPT-mup model.py, the embedding
    unscaled, arXiv 2505.01618 table 1.
    Departure: nanoGPT-mup ties the head and divides the logits by m instead of the
    head's initial values; under Adam both need the rate of their own.
    """

    std: float = 0.02
    base_width: int = 256
    embedding_std: float = 0.02
    head: str = "zero"

    traced = ("std", "base_width", "embedding_std")

    @staticmethod
    def check(
        *,
        std: float = 0.02,
        base_width: int = 256,
        embedding_std: float = 0.02,
        head: str = "zero",
    ) -> None:
        """Raises ValueError for values that make no network."""
        check_positive(std=std, embedding_std=embedding_std)
        check_sizes(base_width=base_width)
        check_choice("head", head, HEADS)

    def kernel(
        self, key: jax.Array, shape: tuple[int, int], use: str, *, layer, n_sublayers
    ) -> jax.Array:
        """Draws a kernel [d_in, d_out] for its use; depth plays no part."""
        del layer, n_sublayers
        if use == "head" and self.head == "zero":
            return jnp.zeros(shape, jnp.float32)
        d_in, d_out = shape
        d_model = d_out if use == "output" else d_in
        m = d_model / jnp.asarray(self.base_width, jnp.float32)
        std = jnp.asarray(self.std, jnp.float32)
        std /= m if use == "head" else jnp.sqrt(m)
        return std * jax.random.normal(key, shape, jnp.float32)

    def bias(self, key: jax.Array, shape: tuple[int], fan_in: int) -> jax.Array:
        """Zeros."""
        del key, fan_in
        return jnp.zeros(shape, jnp.float32)

    def embedding(self, key: jax.Array, shape: tuple[int, int]) -> jax.Array:
        """Draws a token table [vocab_size, d_model]."""
        std = jnp.asarray(self.embedding_std, jnp.float32)
        return std * jax.random.normal(key, shape, jnp.float32)
