"""A random Markov source, whose best possible loss is known exactly."""

import hashlib
import math

import jax
import jax.numpy as jnp
import numpy as np

from experiments.data.dataset import Dataset, split_key

MAX_CONTEXTS = 2**20
MAX_EDGES = 2**23
# A draw is 32 random bits compared with integer thresholds, so that the table of
# probabilities is the one that generates, not its rounded neighbour.
ONE = 2**32


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
            arrays["start"], jax.random.bits(start_key, (batch_size,)), side="right"
        ).astype(jnp.int32)
        # The oldest symbol is the most significant digit of a context.
        powers = self.vocab_size ** np.arange(self.order - 1, -1, -1, dtype=np.int32)
        first = context[:, None] // powers % self.vocab_size

        def step(context, bits):
            passed = bits[:, None] >= arrays["thresholds"][context]
            choice = passed.sum(axis=1, dtype=jnp.int32)
            symbol = arrays["successors"][context, choice]
            return next_context(context, symbol, arrays, self.vocab_size), symbol

        bits = jax.random.bits(path_key, (width - self.order, batch_size))
        _, symbols = jax.lax.scan(step, context, bits)
        return jnp.concatenate([first, symbols.T], axis=1)


def draw_successors(
    rng: np.random.Generator, n_contexts: int, vocab_size: int, branching: int
) -> np.ndarray:
    """int32 [n_contexts, branching]: a uniform subset of the symbols per context.

    Floyd's sampling: the j-th pick is uniform below a growing bound, and is replaced by
    the bound itself where it was taken already.
    """
    picks = np.empty((n_contexts, branching), np.int32)
    for j in range(branching):
        bound = vocab_size - branching + j
        pick = rng.integers(0, bound, n_contexts, endpoint=True)
        taken = (picks[:, :j] == pick[:, None]).any(axis=1)
        picks[:, j] = np.where(taken, bound, pick)
    return picks


def draw_thresholds(
    rng: np.random.Generator, n_contexts: int, branching: int, concentration: float
) -> np.ndarray:
    """uint32 [n_contexts, branching - 1]: cumulative Dirichlet probabilities * 2^32.

    The last one would always be 2^32 and is left out.
    """
    shape = (n_contexts, branching)
    # A gamma variate of shape a is one of shape a + 1 times u^(1/a). In logarithms,
    # since for small a all of a row may be below the smallest float64.
    logs = (
        np.log(rng.standard_gamma(concentration + 1, shape))
        + np.log1p(-rng.random(shape)) / concentration
    )
    weights = np.exp(logs - logs.max(axis=1, keepdims=True))
    return quantise(weights / weights.sum(axis=1, keepdims=True))


def quantise(probabilities: np.ndarray) -> np.ndarray:
    """Cumulative probabilities along the last axis as uint32 thresholds, last left out.

    `bits` uniform in [0, 2^32) choose the number of thresholds that are <= bits.
    """
    cumulative = np.rint(np.cumsum(probabilities, axis=-1)[..., :-1] * ONE)
    return np.minimum(cumulative, ONE - 1).astype(np.uint32)


def probabilities_of(thresholds: np.ndarray) -> np.ndarray:
    """float64 [..., n + 1] from uint32 [..., n]: exactly what the thresholds draw."""
    edges = np.pad(
        thresholds.astype(np.float64),
        [(0, 0)] * (thresholds.ndim - 1) + [(1, 1)],
        constant_values=((0, 0),) * (thresholds.ndim - 1) + ((0, ONE),),
    )
    return np.diff(edges, axis=-1) / ONE


def next_context(context, symbol, table: dict, vocab_size: int):
    """(c * vocab_size + symbol) mod n_contexts, without leaving int32."""
    n_suffixes = table["successors"].shape[0] // vocab_size
    return context % n_suffixes * vocab_size + symbol


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


def entropy_rate(pi: np.ndarray, probabilities: np.ndarray) -> float:
    """sum_c pi(c) H(p(. | c)) in nats, from [C] and [C, b]."""
    safe = np.where(probabilities > 0, probabilities, 1.0)  # 0 ln 0 = 0
    return float(pi @ -(probabilities * np.log(safe)).sum(axis=1))


def stationary(
    targets: np.ndarray,
    probabilities: np.ndarray,
    *,
    tolerance: float = 1e-13,
    max_iterations: int = 20_000,
) -> np.ndarray:
    """A stationary distribution, float64 [C]: where a uniform start ends on average.

    Iterates pi <- (pi + pi P) / 2. Staying half of the time removes every period and
    keeps the stationary distributions, so the limit exists and equals the Cesaro limit
    of the uniform distribution under P, also with several recurrent classes: each gets
    the probability of being absorbed in it, a transient context gets zero.

    Args:
        targets: [C, b], context that each successor leads to.
        probabilities: [C, b], rows sum to 1.
        tolerance: on ||pi P - pi||_1. It bounds by how much the law of a sequence
            started from pi changes per step; that a slowly mixing chain may still be
            far from the limit does not matter then.

    Raises:
        ValueError: the tolerance was not reached.
    """
    n_contexts = len(targets)
    flat = targets.ravel()
    pi = np.full(n_contexts, 1 / n_contexts)
    for _ in range(max_iterations):
        moved = np.bincount(
            flat, (pi[:, None] * probabilities).ravel(), minlength=n_contexts
        )
        change = np.abs(moved - pi).sum()
        if change <= tolerance:
            return pi / pi.sum()
        pi = (pi + moved) / 2
    raise ValueError(
        f"data.concentration, data.branching: this chain of {n_contexts} contexts "
        f"mixes too slowly: its distribution still moves by {change:.1e} per step "
        f"after {max_iterations} steps (expected at most {tolerance:.0e}); take a "
        f"larger concentration or branching, or another source_seed"
    )
