"""The table of a Markov source, and what follows from it exactly."""

import numpy as np

# A draw is 32 random bits compared with integer thresholds, so that the table of
# probabilities is the one that generates, not its rounded neighbour.
ONE = 2**32


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
