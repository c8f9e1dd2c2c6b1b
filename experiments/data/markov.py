"""A random Markov source, whose best possible loss is known exactly."""

import hashlib
import math

import jax
import jax.numpy as jnp
import numpy as np

from experiments.data.dataset import Dataset, split_key
from experiments.data.markov_table import (
    draw_successors,
    draw_thresholds,
    entropy_rate,
    next_context,
    probabilities_of,
    quantise,
    stationary,
)

MAX_CONTEXTS = 2**20
MAX_EDGES = 2**23


class Markov:
    """A sparse random chain of order k over symbols 0 .. vocab_size - 1.

    Each of the vocab_size^k contexts has `branching` distinct successors with
    probabilities from a symmetric Dirichlet distribution, rounded to multiples of
    2^-32. The first context of a sequence comes from the stationary distribution pi, so
    every position has the same law and the entropy rate

        h = sum_c pi(c) H(p(. | c)),  H = -sum p ln p,  nats per token

    is the loss that no model can beat given whole contexts. For k > 1 the first k - 1
    predictions of a sequence see less than a context, so the floor of their mean over
    a window is a little above h.

    The table depends on `source_seed` alone, never on the seed of a run.

    Args:
        vocab_size: number of symbols.
        order: k, symbols in a context.
        branching: successors per context.
        concentration: Dirichlet parameter; small means nearly deterministic.
        source_seed: of the table (numpy default_rng).
    """

    traced = ()

    @staticmethod
    def check(
        *,
        vocab_size: int = 64,
        order: int = 1,
        branching: int = 4,
        concentration: float = 1.0,
        source_seed: int = 0,
    ) -> None:
        """Refuses what has no table, or one too large."""
        if order < 1:
            raise ValueError(f"order: expected at least 1, got {order}")
        if not 2 <= branching <= vocab_size:
            raise ValueError(
                f"branching: expected 2 to vocab_size = {vocab_size}, got {branching}"
            )
        if not (math.isfinite(concentration) and concentration > 0):
            raise ValueError(
                f"concentration: expected a finite number > 0, got {concentration}"
            )
        if source_seed < 0:
            raise ValueError(f"source_seed: expected at least 0, got {source_seed}")
        # Compared in logarithms first: a large order is a very large integer.
        if order * math.log2(vocab_size) > 64 or vocab_size**order > MAX_CONTEXTS:
            raise ValueError(
                f"vocab_size, order: expected at most {MAX_CONTEXTS} contexts, "
                f"got {vocab_size}^{order}"
            )
        if vocab_size**order * branching > MAX_EDGES:
            raise ValueError(
                f"branching: expected at most {MAX_EDGES} successors in all, "
                f"got {vocab_size}^{order} * {branching}"
            )

    def __init__(
        self,
        *,
        vocab_size: int = 64,
        order: int = 1,
        branching: int = 4,
        concentration: float = 1.0,
        source_seed: int = 0,
    ):
        self.vocab_size = vocab_size
        self.order = order
        self.branching = branching
        self.concentration = concentration
        self.source_seed = source_seed

    def load(self) -> Dataset:
        """Draws the table and computes its stationary distribution.

        Raises:
            ValueError: the chain mixes too slowly to find it (`stationary`).
        """
        rng = np.random.default_rng(self.source_seed)
        n_contexts = self.vocab_size**self.order
        successors = draw_successors(rng, n_contexts, self.vocab_size, self.branching)
        thresholds = draw_thresholds(
            rng, n_contexts, self.branching, self.concentration
        )
        return chain_dataset(successors, thresholds, self.vocab_size)

    def batch(self, arrays, key, *, split, batch_size, seq_len) -> jax.Array:
        """Independent stationary sequences, int32 [batch_size, seq_len + 1].

        Raises:
            ValueError: a sequence shorter than one context, or an unknown split.
        """
        width = seq_len + 1
        if width < self.order:
            raise ValueError(
                f"seq_len: expected at least order - 1 = {self.order - 1}, "
                f"got {seq_len}"
            )
        start_key, path_key = jax.random.split(split_key(key, split))
        arrays = jax.tree.map(jnp.asarray, arrays)  # as loaded, or as passed to jit
        context = jnp.searchsorted(
            arrays["start"],
            jax.random.bits(start_key, (batch_size,), jnp.uint32),
            side="right",
        ).astype(jnp.int32)
        # The oldest symbol is the most significant digit of a context.
        powers = self.vocab_size ** np.arange(self.order - 1, -1, -1, dtype=np.int32)
        first = context[:, None] // powers % self.vocab_size

        def step(context, bits):
            passed = bits[:, None] >= arrays["thresholds"][context]
            choice = passed.sum(axis=1, dtype=jnp.int32)
            symbol = arrays["successors"][context, choice]
            return next_context(context, symbol, arrays, self.vocab_size), symbol

        shape = (width - self.order, batch_size)
        bits = jax.random.bits(path_key, shape, jnp.uint32)  # 64 bits wide under x64
        _, symbols = jax.lax.scan(step, context, bits)
        return jnp.concatenate([first, symbols.T], axis=1)


def chain_dataset(
    successors: np.ndarray, thresholds: np.ndarray, vocab_size: int
) -> Dataset:
    """The `Dataset` of one table of successors [C, b] and thresholds [C, b - 1]."""
    table = {"successors": successors, "thresholds": thresholds}
    probabilities = probabilities_of(thresholds)
    contexts = np.arange(len(successors), dtype=np.int32)[:, None]
    targets = next_context(contexts, successors, table, vocab_size)
    pi = stationary(targets, probabilities)
    digest = hashlib.sha256(f"markov {vocab_size} {successors.shape}".encode())
    digest.update(successors.astype("<i4").tobytes())
    digest.update(thresholds.astype("<u4").tobytes())
    return Dataset(
        arrays={**table, "start": quantise(pi)},
        vocab_size=vocab_size,
        unit="symbol",
        fingerprint=digest.hexdigest(),
        train_tokens=None,
        validation_tokens=None,
        references={"entropy_rate": entropy_rate(pi, probabilities)},
    )
