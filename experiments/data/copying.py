"""Random symbols, and then the same ones again."""

import math

import jax
import jax.numpy as jnp

from experiments.data.dataset import Dataset
from experiments.data.episodes import check_sizes, episode_batch, episode_dataset


class Copy:
    """Episodes x_1 .. x_n x_1 .. x_n with independent, uniform x_i.

    There are n_symbols^length of them, and they are 2 * length long, so

        entropy_rate = ln(n_symbols) / 2   nats per token

    ln(n_symbols) in the first half of an episode and nothing in the second. A model that
    never copies stays at ln(n_symbols).

    Args:
        n_symbols: 0 .. n_symbols - 1; the start symbol is n_symbols.
        length: n.
    """

    traced = ()

    @staticmethod
    def check(*, n_symbols: int = 16, length: int = 8) -> None:
        """Refuses an empty copy."""
        check_sizes(n_symbols=n_symbols, length=length)

    def __init__(self, *, n_symbols: int = 16, length: int = 8):
        self.n_symbols = n_symbols
        self.length = length

    def load(self) -> Dataset:
        """Nothing to read."""
        return episode_dataset(
            f"copy n_symbols={self.n_symbols} length={self.length}",
            vocab_size=self.n_symbols + 1,
            period=2 * self.length,
            entropy=self.length * math.log(self.n_symbols),
        )

    def batch(self, arrays, key, *, split, batch_size, seq_len) -> jax.Array:
        """int32 [batch_size, seq_len + 1]; see `episode_batch`."""
        del arrays
        return episode_batch(
            self._episode,
            key,
            split=split,
            start=self.n_symbols,
            period=2 * self.length,
            batch_size=batch_size,
            seq_len=seq_len,
        )

    def _episode(self, key: jax.Array) -> jax.Array:
        once = jax.random.randint(key, (self.length,), 0, self.n_symbols, jnp.int32)
        return jnp.tile(once, 2)
