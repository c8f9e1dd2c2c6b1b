import ast
import hashlib

import pytest

from experiments.data import stdlib
from experiments.data.stdlib import Stdlib, fingerprint, library_pieces, split_by_name


@pytest.fixture(scope="module")
def pieces():
    return library_pieces()


@pytest.fixture(scope="module")
def data():
    return Stdlib().load()


def test_library_is_some_millions_of_bytes_of_code_and_prose(pieces):
    code = {name: text for name, text in pieces.items() if name.endswith(".py")}
    prose = {name: text for name, text in pieces.items() if name not in code}
    assert {"os.py", "json/decoder.py", "asyncio/events.py"} <= code.keys()
    assert "topics/assert" in prose
    assert b"Assert statements are a convenient way" in prose["topics/assert"]
    assert sum(map(len, code.values())) > 6e6
    assert sum(map(len, prose.values())) > 2e5
    ast.parse(pieces["json/decoder.py"])


def test_tests_packages_and_machine_files_are_left_out(pieces):
    folders = {part for name in pieces for part in name.split("/")[:-1]}
    assert not folders & {"test", "tests", "site-packages", "__pycache__", "idle_test"}
    assert not any("_sysconfigdata" in name for name in pieces)
    # The topics are there as prose, not a second time as literals.
    assert "pydoc_data/topics.py" not in pieces


def test_splits_are_disjoint_by_file_and_cover_everything(pieces):
    train, validation = split_by_name(pieces, 0.05)
    assert not train.keys() & validation.keys()
    assert {**train, **validation} == pieces
    # About 800 pieces: 5 % is 40 with a standard deviation of 6.
    assert 0.02 < len(validation) / len(pieces) < 0.08


def test_a_file_keeps_its_side_whatever_others_exist(pieces):
    few = dict(list(pieces.items())[::7])
    _, all_held_out = split_by_name(pieces, 0.2)
    _, few_held_out = split_by_name(few, 0.2)
    assert few_held_out.keys() == all_held_out.keys() & few.keys()


def test_a_larger_fraction_holds_out_more_of_the_same(pieces):
    small, large = (split_by_name(pieces, f)[1].keys() for f in (0.05, 0.2))
    assert small < large


def test_the_side_of_a_file_comes_from_sha256_of_its_name():
    # The same on every machine and Python: hash() is salted per process.
    digest = hashlib.sha256(b"os.py").digest()
    u = int.from_bytes(digest[:8], "big") / 2**64
    assert split_by_name({"os.py": b""}, u)[1] == {}
    assert split_by_name({"os.py": b""}, u * 1.001)[1] == {"os.py": b""}


def test_dataset_is_the_pieces_of_each_split(data, pieces):
    train, validation = split_by_name(pieces, 0.05)
    assert data.arrays["validation"].tobytes() == b"\n".join(validation.values())
    assert data.arrays["train"].tobytes() == b"\n".join(train.values())
    assert data.fingerprint == fingerprint(pieces)
    assert 0 < data.references["bigram"] < data.references["unigram"] < 5.6


def test_fingerprint_sees_names_contents_and_boundaries_but_not_order():
    base = fingerprint({"a": b"bc", "d": b"e"})
    assert fingerprint({"d": b"e", "a": b"bc"}) == base
    others = [
        {"a": b"bx", "d": b"e"},
        {"x": b"bc", "d": b"e"},
        {"ab": b"c", "d": b"e"},
        {"a": b"b", "cd": b"e"},
        {"a": b"bc"},
    ]
    assert len({base, *map(fingerprint, others)}) == 6


def test_max_bytes_takes_whole_files_and_changes_the_fingerprint(data, pieces):
    small = Stdlib(max_bytes=1_000_000, validation_fraction=0.1).load()
    total = small.train_tokens + small.validation_tokens
    assert 700_000 < total <= 1_000_000 + len(pieces)
    assert small.fingerprint != data.fingerprint
    held_out = split_by_name(pieces, 0.1)[1]
    text = small.arrays["validation"].tobytes()
    assert any(piece in text for piece in held_out.values() if len(piece) > 1000)


def test_a_limit_that_empties_a_split_is_refused():
    with pytest.raises(ValueError, match="max_bytes=10,"):
        Stdlib(max_bytes=10).load()


def test_a_python_without_sources_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(stdlib, "library_pieces", dict)
    with pytest.raises(ValueError, match="standard library|library in"):
        Stdlib().load()


@pytest.mark.parametrize(
    "keywords",
    [
        {"validation_fraction": 0.0},
        {"validation_fraction": 1.0},
        {"validation_fraction": float("nan")},
        {"max_bytes": 0},
    ],
)
def test_out_of_range_keywords_are_refused_by_name(keywords):
    with pytest.raises(ValueError, match=f"^{next(iter(keywords))}: "):
        Stdlib.check(**keywords)
