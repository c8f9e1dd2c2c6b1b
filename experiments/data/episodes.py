"""What sources of short independent problems have in common.

Each window is a start symbol, which is not predicted, and behind it episodes of `period`
tokens one after the other. All episodes that there are have the same probability, so
with N of them the chain rule of entropies gives the mean over the tokens of an episode
of the least loss that any model can have:

    entropy_rate = ln(N) / period   nats per token

It is exact for windows of whole episodes.
"""

import hashlib
from collections.abc import Callable

import jax
import jax.numpy as jnp

from experiments.data.dataset import Dataset, split_key


def episode_dataset(
    name: str, *, vocab_size: int, period: int, entropy: float
) -> Dataset:
    """The `Dataset` of such a source.

    Args:
        name: what it draws, with all that decides it.
        vocab_size: of the symbols and the start symbol, which is the last.
        entropy: ln(N) of an episode.
    """
    return Dataset(
        arrays={},
        vocab_size=vocab_size,
        unit="symbol",
        fingerprint=hashlib.sha256(name.encode()).hexdigest(),
        train_tokens=None,
        validation_tokens=None,
        references={"entropy_rate": entropy / period},
        period=period,
    )


def episode_batch(
    draw: Callable[[jax.Array], jax.Array],
    key: jax.Array,
    *,
    split: str,
    start: int,
    period: int,
    batch_size: int,
    seq_len: int,
) -> jax.Array:
    """int32 [batch_size, seq_len + 1]: `start` and independent episodes.

    Args:
        draw: key -> one episode, int32 [period].
    """
    n = -(-seq_len // period)
    keys = jax.random.split(split_key(key, split), (batch_size, n))
    episodes = jax.vmap(jax.vmap(draw))(keys).reshape(batch_size, n * period)
    first = jnp.full((batch_size, 1), start, jnp.int32)
    return jnp.concatenate([first, episodes[:, :seq_len]], axis=1)


def check_sizes(**sizes: int) -> None:
    """Refuses a size below 1, or so large that a vocabulary would leave int32."""
    for key, value in sizes.items():
        if not 1 <= value <= 2**20:
            raise ValueError(f"{key}: expected 1 to 2**20, got {value}")
