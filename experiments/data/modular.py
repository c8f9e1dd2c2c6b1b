"""Sums and products modulo a number."""

import math

import jax
import jax.numpy as jnp

from experiments.data.dataset import Dataset
from experiments.data.episodes import check_sizes, episode_batch, episode_dataset

# Of residues below 2**15 no sum or product of two leaves int32.
MAX_MODULUS = 2**15
OPERATIONS = {"add": jnp.add, "subtract": jnp.subtract, "multiply": jnp.multiply}


class Modular:
    """Episodes  x_1 .. x_n y  with y = x_1 o .. o x_n mod p, from the left.

    The x_i are uniform and independent, so there are p^n episodes of n + 1 tokens, and

        entropy_rate = n ln(p) / (n + 1)   nats per token

    whatever the operation: the result costs nothing. A model that cannot compute stays
    at or, for a product, whose law is not uniform, a little below ln(p) for it.

    Args:
        modulus: p; residues are the symbols 0 .. p - 1, the start symbol is p.
        n_terms: n.
        operation: add, subtract or multiply.
    """

    traced = ()

    @staticmethod
    def check(*, modulus: int = 97, n_terms: int = 3, operation: str = "add") -> None:
        """Refuses an unknown operation, fewer than two terms, a modulus too large."""
        check_sizes(n_terms=n_terms)
        if not 2 <= modulus <= MAX_MODULUS:
            raise ValueError(f"modulus: expected 2 to {MAX_MODULUS}, got {modulus}")
        if n_terms < 2:
            raise ValueError(f"n_terms: expected at least 2, got {n_terms}")
        if operation not in OPERATIONS:
            raise ValueError(
                f"operation: expected one of {', '.join(OPERATIONS)}, got {operation!r}"
            )

    def __init__(self, *, modulus: int = 97, n_terms: int = 3, operation: str = "add"):
        self.modulus = modulus
        self.n_terms = n_terms
        self.operation = operation

    def load(self) -> Dataset:
        """Nothing to read."""
        return episode_dataset(
            f"modular {self.modulus} {self.n_terms} {self.operation}",
            vocab_size=self.modulus + 1,
            period=self.n_terms + 1,
            entropy=self.n_terms * math.log(self.modulus),
        )

    def batch(self, arrays, key, *, split, batch_size, seq_len) -> jax.Array:
        """int32 [batch_size, seq_len + 1]; see `episode_batch`."""
        del arrays
        return episode_batch(
            self._episode,
            key,
            split=split,
            start=self.modulus,
            period=self.n_terms + 1,
            batch_size=batch_size,
            seq_len=seq_len,
        )

    def _episode(self, key: jax.Array) -> jax.Array:
        terms = jax.random.randint(key, (self.n_terms,), 0, self.modulus, jnp.int32)
        apply = OPERATIONS[self.operation]

        def step(result, term):
            return apply(result, term) % self.modulus, None

        result, _ = jax.lax.scan(step, terms[0], terms[1:])
        return jnp.append(terms, result)
