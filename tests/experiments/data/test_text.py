import itertools
import math
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.data.text import (
    bigram_entropy,
    text_dataset,
    unigram_entropy,
    window_batch,
)

SENTENCE = b"the quick brown fox jumps over the lazy dog; the dog sleeps."


def as_array(text: bytes) -> np.ndarray:
    return np.frombuffer(text, np.uint8)


def test_unigram_entropy_equals_a_plain_count():
    n = len(SENTENCE)
    expected = -sum(c / n * math.log(c / n) for c in Counter(SENTENCE).values())
    assert unigram_entropy(as_array(SENTENCE)) == pytest.approx(expected, rel=1e-14)


def test_bigram_entropy_equals_a_plain_count():
    pairs = Counter(itertools.pairwise(SENTENCE))
    previous = Counter(SENTENCE[:-1])
    n = len(SENTENCE) - 1
    expected = -sum(c / n * math.log(c / previous[a]) for (a, _), c in pairs.items())
    assert bigram_entropy(as_array(SENTENCE)) == pytest.approx(expected, rel=1e-14)


def test_entropies_by_hand():
    # Pairs ab bb ba ab: after a always b; after b one b, one a.
    text = as_array(b"abbab")
    expected = -0.4 * math.log(0.4) - 0.6 * math.log(0.6)
    assert unigram_entropy(text) == pytest.approx(expected)
    assert bigram_entropy(text) == pytest.approx(0.5 * math.log(2))


def test_entropies_of_extreme_texts():
    assert unigram_entropy(as_array(b"aaaa")) == 0
    everything = as_array(bytes(range(256)) * 4)
    assert unigram_entropy(everything) == pytest.approx(math.log(256))
    assert bigram_entropy(everything) == 0


def test_entropy_counts_do_not_overflow_a_byte():
    # uint8 arithmetic would send the pair (255, 255) to another cell.
    text = as_array(bytes([255, 255, 0, 255, 255, 1]))
    pairs = {(255, 255): 2, (255, 0): 1, (0, 255): 1, (255, 1): 1}
    previous = {255: 4, 0: 1}
    expected = sum(c * math.log(previous[a] / c) for (a, _), c in pairs.items()) / 5
    assert bigram_entropy(text) == pytest.approx(expected)


def test_references_describe_the_validation_text():
    data = text_dataset(b"zzzzzzzz", SENTENCE, "f")
    assert data.references == {
        "unigram": unigram_entropy(as_array(SENTENCE)),
        "bigram": bigram_entropy(as_array(SENTENCE)),
    }
    assert (data.train_tokens, data.validation_tokens) == (8, len(SENTENCE))
    assert (data.vocab_size, data.unit) == (256, "byte")
    assert all(array.dtype == np.uint8 for array in data.arrays.values())


def test_windows_are_consecutive_bytes_of_their_own_split():
    train, validation = np.arange(100), np.arange(100, 200)
    arrays = {"train": jnp.uint8(train), "validation": jnp.uint8(validation)}
    for split, low in (("train", 0), ("validation", 100)):
        batch = window_batch(
            arrays, jax.random.key(1), split=split, batch_size=2000, seq_len=6
        )
        # The target of every input is the byte right after it.
        np.testing.assert_array_equal(batch[:, 1:], batch[:, :-1] + 1)
        # Every offset from the first to the last possible one is drawn.
        assert set(np.asarray(batch[:, 0])) == set(range(low, low + 94))


def test_offsets_are_uniform():
    arrays = {"train": jnp.arange(12, dtype=jnp.uint8)}
    n = 20_000
    batch = window_batch(
        arrays, jax.random.key(0), split="train", batch_size=n, seq_len=2
    )
    counts = np.bincount(batch[:, 0], minlength=10)
    assert counts.size == 10
    # Chi-square with 9 degrees of freedom: 27.9 is its 0.999 quantile.
    assert np.sum((counts - n / 10) ** 2 / (n / 10)) < 27.9


def test_a_window_as_long_as_the_text_is_allowed_and_a_longer_one_is_refused():
    arrays = {"validation": jnp.arange(8, dtype=jnp.uint8)}
    draw = lambda seq_len: window_batch(  # noqa: E731
        arrays, jax.random.key(0), split="validation", batch_size=2, seq_len=seq_len
    )
    np.testing.assert_array_equal(draw(7), [list(range(8))] * 2)
    with pytest.raises(
        ValueError, match="seq_len.*9 tokens.*validation text, 8 tokens"
    ):
        draw(8)


def test_a_text_without_a_next_byte_is_refused():
    with pytest.raises(ValueError, match="validation"):
        text_dataset(b"abc", b"a", "f")
