"""Keys with values, and then questions for some of them."""

import math

import jax
import jax.numpy as jnp

from experiments.data.dataset import Dataset
from experiments.data.episodes import check_sizes, episode_batch, episode_dataset


class Recall:
    """Episodes  k_1 v_1 .. k_n v_n  q_1 a_1 .. q_m a_m : associative recall.

    The n keys are a uniform choice of different ones, in random order; values are
    uniform and independent; each question is one of the n keys, uniform and independent;
    its answer is the value of that key. There are

        K (K - 1) .. (K - n + 1) * V^n * n^m,   K = n_keys, V = n_values

    episodes of 2 (n + m) tokens, and the entropy_rate is the logarithm of their number
    by that. Answers cost nothing; a model that looks none up pays up to ln V for each.

    Source: multi-query associative recall, arXiv 2312.04927. Departure: questions may
    repeat, their law is uniform, and all tokens have a loss.

    Args:
        n_keys: keys 0 .. n_keys - 1.
        n_values: values n_keys .. n_keys + n_values - 1; the start symbol comes next.
        n_pairs: n.
        n_questions: m.
    """

    traced = ()

    @staticmethod
    def check(
        *, n_keys: int = 16, n_values: int = 16, n_pairs: int = 4, n_questions: int = 4
    ) -> None:
        """Refuses more pairs than there are keys."""
        check_sizes(
            n_keys=n_keys, n_values=n_values, n_pairs=n_pairs, n_questions=n_questions
        )
        if n_pairs > n_keys:
            raise ValueError(
                f"n_pairs: expected at most n_keys = {n_keys}, got {n_pairs}"
            )

    def __init__(
        self,
        *,
        n_keys: int = 16,
        n_values: int = 16,
        n_pairs: int = 4,
        n_questions: int = 4,
    ):
        self.n_keys = n_keys
        self.n_values = n_values
        self.n_pairs = n_pairs
        self.n_questions = n_questions

    @property
    def period(self) -> int:
        """Tokens of an episode."""
        return 2 * (self.n_pairs + self.n_questions)

    def load(self) -> Dataset:
        """Nothing to read."""
        n = self.n_pairs
        entropy = (
            math.lgamma(self.n_keys + 1)
            - math.lgamma(self.n_keys - n + 1)
            + n * math.log(self.n_values)
            + self.n_questions * math.log(n)
        )
        return episode_dataset(
            f"recall {self.n_keys} {self.n_values} {n} {self.n_questions}",
            vocab_size=self.n_keys + self.n_values + 1,
            period=self.period,
            entropy=entropy,
        )

    def batch(self, arrays, key, *, split, batch_size, seq_len) -> jax.Array:
        """int32 [batch_size, seq_len + 1]; see `episode_batch`."""
        del arrays
        return episode_batch(
            self._episode,
            key,
            split=split,
            start=self.n_keys + self.n_values,
            period=self.period,
            batch_size=batch_size,
            seq_len=seq_len,
        )

    def _episode(self, key: jax.Array) -> jax.Array:
        keys_key, values_key, questions_key = jax.random.split(key, 3)
        n = self.n_pairs
        all_keys = jnp.arange(self.n_keys, dtype=jnp.int32)
        keys = jax.random.permutation(keys_key, all_keys)[:n]
        values = jax.random.randint(values_key, (n,), 0, self.n_values, jnp.int32)
        pairs = jnp.stack([keys, self.n_keys + values], axis=1)  # [n, 2]
        asked = jax.random.randint(questions_key, (self.n_questions,), 0, n, jnp.int32)
        return jnp.concatenate([pairs.ravel(), pairs[asked].ravel()])
