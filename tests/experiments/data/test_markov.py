import math

import jax
import numpy as np
import pytest

from experiments.data.markov import MAX_CONTEXTS, Markov, chain_dataset
from experiments.data.markov_table import (
    draw_successors,
    draw_thresholds,
    entropy_rate,
    probabilities_of,
    quantise,
    stationary,
)


def entropy(*probabilities):
    return -sum(p * math.log(p) for p in probabilities)


def sequences(source, data, batch_size, seq_len, seed=0, split="train"):
    draw = jax.jit(
        lambda arrays, key: source.batch(
            arrays, key, split=split, batch_size=batch_size, seq_len=seq_len
        )
    )
    return np.asarray(draw(data.arrays, jax.random.key(seed)))


# -- exact numbers -------------------------------------------------------------


def test_two_state_chain_by_hand():
    # 0 -> 1 with 1/4, 1 -> 0 with 1/2: pi = (2/3, 1/3).
    probabilities = np.array([[0.75, 0.25], [0.5, 0.5]])
    targets = np.array([[0, 1], [0, 1]])
    pi = stationary(targets, probabilities)
    np.testing.assert_allclose(pi, [2 / 3, 1 / 3], rtol=1e-12)
    expected = 2 / 3 * entropy(0.75, 0.25) + 1 / 3 * math.log(2)
    assert entropy_rate(pi, probabilities) == pytest.approx(expected, rel=1e-12)
    data = chain_dataset(targets.astype(np.int32), quantise(probabilities), 2)
    assert data.references["entropy_rate"] == pytest.approx(expected, rel=1e-12)


def test_a_periodic_chain_has_a_stationary_distribution():
    # 0 <-> {1, 2}: period two, a plain power iteration from 0 would never settle.
    targets = np.array([[1, 2], [0, 0], [0, 0]])
    probabilities = np.array([[0.3, 0.7], [0.6, 0.4], [1.0, 0.0]])
    np.testing.assert_allclose(
        stationary(targets, probabilities), [0.5, 0.15, 0.35], rtol=1e-12
    )


def test_several_recurrent_classes_share_by_absorption():
    # {0, 1} and {2} never leave; 3 goes to 2 with 3/4 and to 0 with 1/4. From a uniform
    # start {0, 1} gets 1/4 + 1/4 + 1/16, {2} gets 1/4 + 3/16.
    targets = np.array([[0, 1], [0, 1], [2, 2], [0, 2]])
    probabilities = np.array([[0.5, 0.5], [1.0, 0.0], [0.5, 0.5], [0.25, 0.75]])
    pi = stationary(targets, probabilities)
    np.testing.assert_allclose(pi, [3 / 8, 3 / 16, 7 / 16, 0], atol=1e-12)


@pytest.mark.parametrize("keywords", [{}, {"vocab_size": 5, "order": 3}])
def test_stationary_solves_the_eigenproblem(keywords):
    data = Markov(**keywords).load()
    table = data.arrays
    vocab_size, n = data.vocab_size, len(table["successors"])
    probabilities = probabilities_of(table["thresholds"])
    dense = np.zeros((n, n))
    for context in range(n):
        for symbol, p in zip(
            table["successors"][context], probabilities[context], strict=True
        ):
            dense[context, (context * vocab_size + symbol) % n] += p
    values, vectors = np.linalg.eig(dense.T)
    order = np.argsort(abs(values - 1))
    assert abs(values[order[1]] - 1) > 1e-3  # one recurrent class: pi is unique
    pi = np.real(vectors[:, order[0]])
    pi = pi / pi.sum()
    row_entropy = [entropy(*row[row > 0]) for row in probabilities]
    expected = float(pi @ row_entropy)
    assert data.references["entropy_rate"] == pytest.approx(expected, rel=1e-9)
    np.testing.assert_allclose(
        np.diff(table["start"] / 2**32, prepend=0, append=1), pi, atol=1e-8
    )


def test_a_chain_that_mixes_too_slowly_is_refused():
    # 100 contexts in a ring, all but deterministic: mixing takes about 100^2 steps.
    ring = np.arange(100)
    targets = np.stack([(ring + 1) % 100, ring], axis=1)
    leave = np.where(ring < 50, 1e-6, 0.5)
    with pytest.raises(ValueError, match="mixes too slowly"):
        stationary(targets, np.stack([leave, 1 - leave], axis=1), max_iterations=500)


# -- the generator draws from that table ---------------------------------------


@pytest.mark.parametrize(
    "keywords", [{"vocab_size": 8}, {"vocab_size": 3, "order": 2, "branching": 2}]
)
def test_long_simulation_has_the_frequencies_and_entropy_of_the_table(keywords):
    source = Markov(source_seed=1, **keywords)
    data = source.load()
    k, v = source.order, source.vocab_size
    tokens = sequences(source, data, batch_size=400, seq_len=999)
    windows = np.lib.stride_tricks.sliding_window_view(tokens, k + 1, axis=1)
    contexts = windows[..., :k] @ v ** np.arange(k - 1, -1, -1)
    counts = np.zeros((v**k, v))
    np.add.at(counts, (contexts.ravel(), windows[..., k].ravel()), 1)

    probabilities = probabilities_of(data.arrays["thresholds"])
    table = np.zeros((v**k, v))
    np.put_along_axis(table, data.arrays["successors"], probabilities, axis=1)
    assert np.all(counts[table == 0] == 0)  # nothing outside the successors
    visits = counts.sum(axis=1, keepdims=True)
    error = 5 * np.sqrt(table * (1 - table) / np.maximum(visits, 1)) + 1e-9
    assert np.all(
        (abs(counts / np.maximum(visits, 1) - table) <= error) | (visits == 0)
    )

    # Mean -ln p of what was drawn: 400 000 tokens with a standard deviation below 1.5
    # each give 0.0024.
    drawn = counts > 0
    cost = -np.sum(counts[drawn] * np.log(table[drawn])) / counts.sum()
    assert cost == pytest.approx(data.references["entropy_rate"], abs=0.01)


def test_every_position_has_the_stationary_law():
    # From another start the first positions would differ: here 0 is absorbing, almost.
    successors = np.array([[0, 1], [0, 1], [0, 2]], np.int32)
    probabilities = np.array([[0.9, 0.1], [0.5, 0.5], [0.5, 0.5]])
    data = chain_dataset(successors, quantise(probabilities), 3)
    source = Markov(vocab_size=3, branching=2)
    n = 40_000
    tokens = sequences(source, data, batch_size=n, seq_len=4)
    pi = np.array([5 / 6, 1 / 6, 0])
    for position in range(5):
        share = np.bincount(tokens[:, position], minlength=3) / n
        np.testing.assert_allclose(share, pi, atol=5 * np.sqrt(0.14 / n))


def test_a_context_is_the_last_symbols_oldest_first():
    # Order 2 over {0, 1}: the successor is fixed to (older symbol) xor 1, so the
    # sequence repeats with period 4: 0 0 1 1.
    older = np.array([0, 0, 1, 1])
    successors = np.stack([1 - older, older], axis=1).astype(np.int32)
    probabilities = np.array([[1.0, 0.0]] * 4)
    data = chain_dataset(successors, quantise(probabilities), 2)
    # A probability of 1 is rounded down to 1 - 2^-32.
    tokens = sequences(Markov(vocab_size=2, order=2, branching=2), data, 50, 11)
    np.testing.assert_array_equal(tokens[:, 2:], 1 - tokens[:, :-2])
    assert len({tuple(row[:2]) for row in tokens}) == 4


def test_training_and_validation_follow_one_law_with_other_draws():
    source = Markov()
    data = source.load()
    train = sequences(source, data, 8, 32)
    validation = sequences(source, data, 8, 32, split="validation")
    assert not np.array_equal(train, validation)
    allowed = {(c, s) for c, row in enumerate(data.arrays["successors"]) for s in row}
    for tokens in (train, validation):
        pairs = zip(tokens[:, :-1].ravel(), tokens[:, 1:].ravel(), strict=True)
        assert set(pairs) <= allowed


def test_large_tables_stay_inside_int32():
    # A context times the vocabulary would pass 2^31, and wrap to another context.
    n = 1_000_003
    source = Markov(vocab_size=n, branching=2)
    rng = np.random.default_rng(0)
    table = {
        "successors": draw_successors(rng, n, n, 2),
        "thresholds": draw_thresholds(rng, n, 2, 1.0),
        "start": (np.arange(1, n, dtype=np.uint64) * 2**32 // n).astype(np.uint32),
    }
    tokens = np.asarray(
        source.batch(table, jax.random.key(0), split="train", batch_size=64, seq_len=9)
    )
    allowed = table["successors"][tokens[:, :-1]]
    assert np.all((allowed == tokens[:, 1:, None]).any(axis=-1))


# -- the table -----------------------------------------------------------------


def test_successors_are_distinct_and_uniform():
    picks = draw_successors(np.random.default_rng(0), 30_000, 6, 3)
    assert np.all(np.diff(np.sort(picks, axis=1), axis=1) > 0)
    subsets = np.sort(picks, axis=1) @ [36, 6, 1]
    _, counts = np.unique(subsets, return_counts=True)
    assert counts.size == 20
    # Chi-square with 19 degrees of freedom: 43.8 is its 0.999 quantile.
    assert np.sum((counts - 1500) ** 2 / 1500) < 43.8


@pytest.mark.parametrize("concentration", [0.001, 0.5, 1.0, 20.0])
def test_probabilities_have_the_moments_of_the_dirichlet(concentration):
    b, n = 4, 40_000
    p = probabilities_of(draw_thresholds(np.random.default_rng(0), n, b, concentration))
    assert np.all(p >= 0)
    np.testing.assert_array_equal(p.sum(axis=1), 1)
    # Symmetric Dirichlet: mean 1/b, variance (b - 1) / (b^2 (b a + 1)).
    variance = (b - 1) / (b**2 * (b * concentration + 1))
    np.testing.assert_allclose(p.mean(axis=0), 1 / b, atol=5 * np.sqrt(variance / n))
    np.testing.assert_allclose(p.var(axis=0), variance, rtol=0.05)


def test_thresholds_hold_the_probabilities_to_32_bits():
    p = np.array([[0.2, 0.3, 0.5], [0.0, 1.0, 0.0]])
    np.testing.assert_allclose(probabilities_of(quantise(p)), p, atol=2.0**-32)


def test_fingerprint_follows_the_table():
    def of(**keywords):
        return Markov(**keywords).load().fingerprint

    prints = [of(), of(source_seed=1), of(concentration=0.9), of(vocab_size=63)]
    prints.append(of(branching=3))
    assert len(set(prints)) == 5
    assert of() == prints[0]


@pytest.mark.parametrize(
    "keywords, key",
    [
        ({"order": 0}, "order"),
        ({"branching": 1}, "branching"),
        ({"branching": 65}, "branching"),
        ({"vocab_size": 1}, "branching"),
        ({"concentration": 0.0}, "concentration"),
        ({"concentration": float("inf")}, "concentration"),
        ({"source_seed": -1}, "source_seed"),
        ({"order": 4}, "vocab_size, order"),
        ({"order": 10**9}, "vocab_size, order"),
        ({"vocab_size": MAX_CONTEXTS, "branching": 9}, "branching"),
    ],
)
def test_out_of_range_keywords_are_refused_by_name(keywords, key):
    with pytest.raises(ValueError, match=f"^{key}: "):
        Markov.check(**keywords)


def test_a_sequence_shorter_than_a_context_is_refused():
    source = Markov(vocab_size=3, order=3, branching=2)
    data = source.load()
    assert sequences(source, data, 2, 2).shape == (2, 3)
    with pytest.raises(ValueError, match="seq_len"):
        sequences(source, data, 2, 1)
