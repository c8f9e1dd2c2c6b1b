"""Sources of short problems: their floors, by counting all problems that there are."""

import collections
import itertools
import math

import jax
import numpy as np
import pytest

from experiments.data.copying import Copy
from experiments.data.induction import Induction
from experiments.data.modular import Modular
from experiments.data.recall import Recall
from experiments.errors import ConfigError
from experiments.group import check_fit

# A source small enough to list, and whether a sequence of symbols is one of its
# episodes, said in another way than the source does.


def is_copy(x):
    return x[:2] == x[2:]


def is_induction(x):  # symbols 0 .. 2, trigger 3, length 4
    body, trigger, answer = x[:4], x[4], x[5]
    if trigger != 3 or body.count(3) != 1 or body[-1] == 3:
        return False
    return body[body.index(3) + 1] == answer


def is_recall(x):  # keys 0 .. 2, values 3 and 4, two pairs, one question
    k1, v1, k2, v2, question, answer = x
    kinds = all(k < 3 for k in (k1, k2)) and all(v >= 3 for v in (v1, v2))
    return kinds and k1 != k2 and (question, answer) in ((k1, v1), (k2, v2))


CASES = {
    "copy": (Copy(n_symbols=3, length=2), 3, is_copy),
    "induction": (Induction(n_symbols=3, length=4), 4, is_induction),
    "recall": (Recall(n_keys=3, n_values=2, n_pairs=2, n_questions=1), 5, is_recall),
    "add": (
        Modular(modulus=5, n_terms=2, operation="add"),
        5,
        lambda x: x[2] == (x[0] + x[1]) % 5,
    ),
    "subtract": (
        Modular(modulus=5, n_terms=3, operation="subtract"),
        5,
        lambda x: (x[0] - x[1] - x[2] - x[3]) % 5 == 0,
    ),
    "multiply": (
        Modular(modulus=5, n_terms=2, operation="multiply"),
        5,
        lambda x: x[2] == x[0] * x[1] % 5,
    ),
}


@pytest.fixture(params=sorted(CASES))
def case(request):
    return CASES[request.param]


def drawn(source, n, seq_len, split="train"):
    draw = jax.jit(
        lambda key: source.batch({}, key, split=split, batch_size=n, seq_len=seq_len)
    )
    return np.asarray(draw(jax.random.key(0)))


def test_the_floor_is_the_entropy_of_all_episodes_listed(case):
    source, n_symbols, is_one = case
    data = source.load()
    listed = itertools.product(range(n_symbols), repeat=data.period)
    n = sum(map(is_one, listed))
    expected = math.log(n) / data.period
    assert data.references["entropy_rate"] == pytest.approx(expected, rel=1e-12)


def test_all_episodes_listed_are_drawn_equally_often(case):
    source, n_symbols, is_one = case
    period = source.load().period
    listed = itertools.product(range(n_symbols), repeat=period)
    expected = {x for x in listed if is_one(x)}
    tokens = drawn(source, 4000, 2 * period)[:, 1:]
    counts = collections.Counter(map(tuple, tokens.reshape(-1, period).tolist()))
    assert set(counts) == expected
    mean = 8000 / len(expected)
    chi_square = sum((n - mean) ** 2 / mean for n in counts.values())
    freedom = len(expected) - 1
    assert chi_square < freedom + 5 * math.sqrt(2 * freedom)


def test_episodes_of_a_window_are_independent():
    source = Copy(n_symbols=2, length=1)
    tokens = drawn(source, 20_000, 4)[:, 1:]
    pairs = collections.Counter(map(tuple, tokens[:, ::2].tolist()))
    assert set(pairs) == {(0, 0), (0, 1), (1, 0), (1, 1)}
    assert all(abs(n - 5000) < 5 * math.sqrt(5000) for n in pairs.values())


def test_a_window_begins_with_the_start_symbol_alone(case):
    source, _, _ = case
    tokens = drawn(source, 500, source.load().period)
    last = source.load().vocab_size - 1
    assert (tokens[:, 0] == last).all()
    assert (tokens[:, 1:] < last).all()


def test_a_run_whose_windows_are_no_whole_episodes_is_refused(compose):
    (config,) = compose("data=recall", "seq_len=48")
    check_fit(config, config.data.build({}, "data").load())
    (config,) = compose("data=recall", "seq_len=40")
    with pytest.raises(
        ConfigError, match=r"^seq_len: Recall .* multiple of 16, got 40"
    ):
        check_fit(config, config.data.build({}, "data").load())


def test_a_window_of_another_length_is_cut():
    whole = drawn(Modular(), 3, 8)
    np.testing.assert_array_equal(drawn(Modular(), 3, 7), whole[:, :8])


def test_products_of_the_largest_residues_do_not_wrap():
    source = Modular(modulus=2**15, n_terms=2, operation="multiply")
    a, b, c = drawn(source, 2000, 3)[:, 1:].T.astype(np.int64)
    np.testing.assert_array_equal(c, a * b % 2**15)
    assert a.max() > 32_000


@pytest.mark.parametrize(
    "source, others",
    [
        (Copy, [{"length": 7}, {"n_symbols": 5}]),
        (Induction, [{"length": 7}, {"n_symbols": 5}]),
        (Modular, [{"modulus": 5}, {"n_terms": 2}, {"operation": "subtract"}]),
        (
            Recall,
            [{"n_keys": 5}, {"n_values": 5}, {"n_pairs": 2}, {"n_questions": 2}],
        ),
    ],
)
def test_the_fingerprint_follows_every_keyword(source, others):
    prints = {source(**keywords).load().fingerprint for keywords in ({}, *others)}
    assert len(prints) == 1 + len(others)


@pytest.mark.parametrize(
    "source, keywords, key",
    [
        (Copy, {"length": 0}, "length"),
        (Copy, {"n_symbols": 0}, "n_symbols"),
        (Induction, {"length": 1}, "length"),
        (Recall, {"n_pairs": 17}, "n_pairs"),
        (Recall, {"n_questions": 0}, "n_questions"),
        (Modular, {"modulus": 1}, "modulus"),
        (Modular, {"modulus": 2**15 + 1}, "modulus"),
        (Modular, {"n_terms": 1}, "n_terms"),
        (Modular, {"operation": "divide"}, "operation"),
    ],
)
def test_out_of_range_keywords_are_refused_by_name(source, keywords, key):
    with pytest.raises(ValueError, match=f"^{key}: "):
        source.check(**keywords)
