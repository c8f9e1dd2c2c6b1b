"""Masked texts: the rule, its statistics, and the best loss where it is known."""

import collections
import dataclasses
import math

import jax
import numpy as np
import pytest

from experiments.data.bytes_file import BytesFile
from experiments.data.copying import Copy
from experiments.data.digits import Digits
from experiments.data.gaussian import Gaussian
from experiments.data.markov import Markov
from experiments.data.masked import Masked
from experiments.data.stdlib import Stdlib
from experiments.data.tokens import TokenStream

V = 16
MARKOV = Markov(vocab_size=V, branching=4)


def drawn(source, *, n=64, seq_len=40, seed=0, split="train"):
    """A batch, and the windows of the text that it is made of."""
    key, arrays = jax.random.key(seed), source.load().arrays
    size = {"split": split, "batch_size": n, "seq_len": seq_len}

    @jax.jit
    def both(arrays, key):
        batch = source.batch(arrays, key, **size)
        return batch, source.text.batch(arrays, key, **size)

    batch, text = both(arrays, key)
    return {k: np.asarray(x) for k, x in batch.items()}, np.asarray(text)[:, :-1]


def is_near(count, n, p):
    """Within five standard deviations of a binomial count."""
    return abs(count - n * p) < 5 * math.sqrt(n * p * (1 - p))


# -- the rule ------------------------------------------------------------------


@pytest.mark.parametrize(
    "seq_len, rate, n", [(40, 0.15, 6), (128, 0.15, 19), (3, 0.15, 1), (8, 1.0, 8)]
)
def test_every_window_asks_for_as_many_tokens(seq_len, rate, n):
    batch, _ = drawn(Masked(text=MARKOV, rate=rate), seq_len=seq_len)
    assert ((batch["labels"] != -100).sum(axis=1) == n).all()


def test_labels_are_the_text_where_asked_and_all_else_is_shown_as_it_is():
    batch, text = drawn(Masked(text=MARKOV))
    asked = batch["labels"] != -100
    np.testing.assert_array_equal(batch["labels"][asked], text[asked])
    np.testing.assert_array_equal(batch["tokens"][~asked], text[~asked])
    assert (batch["tokens"] <= V).all()
    assert (text < V).all()
    assert (batch["segments"] == 0).all()


def test_eight_in_ten_are_masked_one_is_random_and_one_unchanged():
    batch, text = drawn(Masked(text=MARKOV), n=2000, seq_len=40)
    asked = batch["labels"] != -100
    shown, right = batch["tokens"][asked], text[asked]
    n = len(shown)
    assert n == 2000 * 6
    assert is_near((shown == V).sum(), n, 0.8)
    # A random token is the right one once in V.
    assert is_near((shown == right).sum(), n, 0.1 + 0.1 / V)
    assert is_near(((shown != right) & (shown < V)).sum(), n, 0.1 * (1 - 1 / V))


def test_random_tokens_are_uniform_over_the_vocabulary_of_the_text():
    source = Masked(text=MARKOV, masked=0.0, random=1.0)
    batch, _ = drawn(source, n=2000)
    shown = batch["tokens"][batch["labels"] != -100]
    counts = np.bincount(shown, minlength=V + 1)
    assert counts[V] == 0
    assert all(is_near(c, len(shown), 1 / V) for c in counts[:V])


@pytest.mark.parametrize("masked, expected", [(1.0, "all"), (0.0, "none")])
def test_shares_of_one_and_none(masked, expected):
    source = Masked(text=MARKOV, masked=masked, random=0.0)
    batch, text = drawn(source)
    asked = batch["labels"] != -100
    if expected == "all":
        assert (batch["tokens"][asked] == V).all()
    else:
        np.testing.assert_array_equal(batch["tokens"], text)


def test_every_place_is_asked_for_equally_often_and_places_are_independent():
    batch, _ = drawn(Masked(text=MARKOV, rate=0.25), n=8000, seq_len=8)
    asked = batch["labels"] != -100
    assert all(is_near(c, 8000, 0.25) for c in asked.sum(axis=0))
    # 2 of 8 places: each of the 28 pairs as likely as another.
    pairs = collections.Counter(map(bytes, np.packbits(asked, axis=1)))
    assert len(pairs) == 28
    assert all(is_near(c, 8000, 1 / 28) for c in pairs.values())


def test_what_is_shown_does_not_depend_on_the_text():
    """Text and masks have keys of their own: masks do not tell what the text is."""
    source = Masked(text=MARKOV)
    first, text = drawn(source, n=2000, seq_len=40)
    asked = first["labels"] != -100
    rates = [asked[text == symbol].mean() for symbol in range(V)]
    sizes = [(text == symbol).sum() for symbol in range(V)]
    assert all(
        is_near(rate * n, n, 0.15) for rate, n in zip(rates, sizes, strict=True) if n
    )


# -- what a run depends on -----------------------------------------------------


def test_windows_are_those_of_the_text_and_masks_follow_key_and_split():
    source = Masked(text=MARKOV)
    one, _ = drawn(source, seed=1)
    again, _ = drawn(source, seed=1)
    other, _ = drawn(source, seed=2)
    validation, _ = drawn(source, seed=1, split="validation")
    for name in one:
        np.testing.assert_array_equal(one[name], again[name])
    places = [b["labels"] != -100 for b in (one, other, validation)]
    assert not np.array_equal(places[0], places[1])
    assert not np.array_equal(places[0], places[2])


def test_the_dataset_is_that_of_the_text_with_one_more_id():
    text = Stdlib(max_bytes=300_000, validation_fraction=0.3)
    plain, masked = text.load(), Masked(text=text).load()
    assert masked.vocab_size == plain.vocab_size + 1 == 257
    assert masked.unit == "masked byte"
    assert masked.train_tokens == plain.train_tokens
    assert masked.references == {"unigram": plain.references["unigram"]}
    # A floor of whole episodes read from the left is no floor here.
    episodes = Masked(text=Copy()).load()
    assert (episodes.period, episodes.references) == (None, {})


def test_the_fingerprint_follows_the_text_and_every_share():
    others = [
        {"text": Markov(source_seed=1)}, {"rate": 0.2}, {"masked": 0.7}, {"random": 0.2}
    ]  # fmt: skip
    prints = {Masked(**{"text": MARKOV, **o}).load().fingerprint for o in ({}, *others)}
    assert len(prints) == 5
    assert MARKOV.load().fingerprint not in prints


def test_windows_that_the_host_reads_are_masked_alike():
    """Streamed data: `finish` on the windows of a batch is that batch."""
    source, key = Masked(text=MARKOV), jax.random.key(3)
    arrays = source.load().arrays
    size = {"split": "train", "batch_size": 4, "seq_len": 20}
    plain = source.batch(arrays, key, **size)

    class Read(Markov):
        """The same text, as if it were too large for the device."""

        def load(self):
            read = TokenStream({})
            return dataclasses.replace(super().load(), arrays={}, stream=read)

    data = Masked(text=Read(vocab_size=V, branching=4)).load()
    assert data.arrays == {}
    windows = source.text.batch(arrays, key, **size)
    streamed = data.stream.finish(windows, key, split="train")
    for name in plain:
        np.testing.assert_array_equal(streamed[name], plain[name])


# -- the best loss -------------------------------------------------------------


def losses_of(predict, batch):
    """-ln p of the labels, for `predict(tokens of a window)` -> p [seq_len, V]."""
    found = []
    for tokens, labels in zip(batch["tokens"], batch["labels"], strict=True):
        p = predict(tokens)
        found += [-math.log(p[i][labels[i]]) for i in np.flatnonzero(labels != -100)]
    return np.array(found)


def looks_at_the_place_alone(tokens):
    """Bayes' rule for independent uniform symbols under 80 / 10 / 10."""
    p = np.full((len(tokens), V), 1 / V)
    for i, shown in enumerate(tokens):
        if shown < V:  # unchanged or random, each as likely
            p[i] = 0.5 / V
            p[i, shown] += 0.5
    return p


def test_the_best_loss_on_symbols_without_memory_is_the_one_in_closed_form():
    """0.8 ln V where masked; else the entropy of a half-trusted token."""
    noise = Markov(vocab_size=V, branching=V, concentration=1e6)
    batch, _ = drawn(Masked(text=noise), n=2000, seq_len=40)
    found = losses_of(looks_at_the_place_alone, batch)
    hit = 0.5 + 0.5 / V
    miss = (1 - hit) / (V - 1)
    seen = -hit * math.log(hit) - (1 - hit) * math.log(miss)
    expected = 0.8 * math.log(V) + 0.2 * seen
    assert abs(found.mean() - expected) < 5 * found.std() / math.sqrt(len(found))
    # And it is better than to ignore the place, whose loss is ln V.
    assert expected < 0.95 * math.log(V)


def test_a_masked_copy_costs_nothing_where_its_twin_is_seen():
    """Episodes x x: the other half says it, unless it was chosen as well."""
    text = Copy(n_symbols=V - 1, length=20)
    source = Masked(text=text, masked=1.0, random=0.0)
    batch, whole = drawn(source, n=1000, seq_len=41)
    tokens, labels = batch["tokens"][:, 1:], batch["labels"][:, 1:]
    twins = np.roll(tokens, 20, axis=1)
    asked = labels != -100
    is_seen = asked & (twins != V)
    np.testing.assert_array_equal(twins[is_seen], labels[is_seen])
    # 6 of the 41 places: another one is chosen with probability 5 / 40.
    assert is_near((asked & ~is_seen).sum() / 2, asked.sum() / 2, 5 / 40)
    assert (whole[:, 0] == V - 1).all()


# -- what is refused -----------------------------------------------------------


@pytest.mark.parametrize(
    "keywords, told",
    [
        ({"rate": 0.0}, "^rate: expected a share above 0"),
        ({"rate": 1.1}, "^rate: "),
        ({"masked": -0.1}, "^masked: expected a share from 0 to 1, got -0.1"),
        ({"random": 1.5}, "^random: "),
        (
            {"masked": 0.95, "random": 0.1},
            "^masked, random: expected at most 1 together",
        ),
    ],
)
def test_shares_that_are_none_are_refused_by_name(keywords, told):
    with pytest.raises(ValueError, match=told):
        Masked.check(**keywords)


def test_all_shares_of_one_tenth_fit_together():
    Masked.check(masked=0.9, random=0.1)


@pytest.mark.parametrize(
    "text, told",
    [
        (
            Gaussian(),
            "^text: expected a source of tokens, Gaussian has rows of numbers",
        ),
        (Digits(), "^text: expected a source of tokens, Digits has images"),
        (Masked(text=MARKOV), "^text: expected a source of tokens, Masked has masked"),
    ],
)
def test_what_is_no_text_is_refused(text, told):
    with pytest.raises(ValueError, match=told):
        Masked(text=text).load()


@pytest.mark.parametrize(
    "text, told",
    [
        (BytesFile(path="/does/not/exist"), "^text.path: no such file"),
        (Stdlib(max_bytes=1), r"^data.text.max_bytes=1, data.text.validation"),
    ],
)
def test_a_text_that_cannot_be_read_is_told_by_its_own_key(text, told):
    with pytest.raises(ValueError, match=told):
        Masked(text=text).load()
