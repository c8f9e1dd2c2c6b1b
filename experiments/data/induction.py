"""A trigger among random symbols; what followed it has to be recalled."""

import math

import jax
import jax.numpy as jnp

from experiments.data.dataset import Dataset
from experiments.data.episodes import check_sizes, episode_batch, episode_dataset


class Induction:
    """Episodes  a b c T d e f T d : behind its second occurrence the trigger T is
    followed by what followed the first.

    length tokens come first, uniform and independent but for T at one uniform place that
    is not the last; then T, and the symbol that stood behind it. There are
    (length - 1) * n_symbols^(length - 1) episodes of length + 2 tokens, so

        entropy_rate = (ln(length - 1) + (length - 1) ln(n_symbols)) / (length + 2)

    nats per token. The last token of an episode costs nothing, and ln(n_symbols) where
    a model does not look it up: (ln n_symbols) / (length + 2) more on average.

    Source: the induction-head task of arXiv 2212.14052. Departure: many episodes to a
    window, and a loss on all tokens.

    Args:
        n_symbols: 0 .. n_symbols - 1; T is n_symbols, the start symbol n_symbols + 1.
        length: tokens before the second T.
    """

    traced = ()

    @staticmethod
    def check(*, n_symbols: int = 16, length: int = 14) -> None:
        """Refuses an episode without room for T and a symbol behind it."""
        check_sizes(n_symbols=n_symbols, length=length)
        if length < 2:
            raise ValueError(f"length: expected at least 2, got {length}")

    def __init__(self, *, n_symbols: int = 16, length: int = 14):
        self.n_symbols = n_symbols
        self.length = length

    def load(self) -> Dataset:
        """Nothing to read."""
        n = self.length - 1
        return episode_dataset(
            f"induction n_symbols={self.n_symbols} length={self.length}",
            vocab_size=self.n_symbols + 2,
            period=self.length + 2,
            entropy=math.log(n) + n * math.log(self.n_symbols),
        )

    def batch(self, arrays, key, *, split, batch_size, seq_len) -> jax.Array:
        """int32 [batch_size, seq_len + 1]; see `episode_batch`."""
        del arrays
        return episode_batch(
            self._episode,
            key,
            split=split,
            start=self.n_symbols + 1,
            period=self.length + 2,
            batch_size=batch_size,
            seq_len=seq_len,
        )

    def _episode(self, key: jax.Array) -> jax.Array:
        symbols_key, place_key = jax.random.split(key)
        shape = (self.length,)
        body = jax.random.randint(symbols_key, shape, 0, self.n_symbols, jnp.int32)
        place = jax.random.randint(place_key, (), 0, self.length - 1, jnp.int32)
        body = body.at[place].set(self.n_symbols)
        return jnp.concatenate([body, jnp.stack([body[place], body[place + 1]])])
