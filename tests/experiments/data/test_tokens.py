import json

import jax
import numpy as np
import pytest

from experiments.data import token_text, tokens
from experiments.data.shards import shard_at, write_shard
from experiments.data.token_text import TokenText
from experiments.data.tokens import Tokens

SIZES = (30, 1, 50)


@pytest.fixture
def ids():
    return np.random.default_rng(0).integers(0, 1000, sum(SIZES)).astype("<u2")


@pytest.fixture
def folder(tmp_path, ids):
    for i, part in enumerate(np.split(ids, np.cumsum(SIZES)[:-1])):
        write_shard(tmp_path / f"train_{i}.bin", part)
    return tmp_path


@pytest.fixture
def joined(folder):
    shards = [shard_at(file, None) for file in sorted(folder.glob("*.bin"))]
    return TokenText.of(shards, 1000)


def source(folder, **keywords):
    keywords = {"vocab_size": 1000, "validation_fraction": 0.25, **keywords}
    return Tokens(paths=f"{folder}/train_*.bin", **keywords)


# -- windows -----------------------------------------------------------------------


@pytest.mark.parametrize("width", [1, 5, 40])
def test_a_window_is_what_stands_there_in_the_files_joined(joined, ids, width):
    starts = np.arange(len(ids) - width + 1)
    np.random.default_rng(1).shuffle(starts)
    found = joined.windows(starts.reshape(1, -1), width)
    expected = np.stack([ids[i : i + width] for i in starts])
    np.testing.assert_array_equal(found, expected[None])
    assert found.dtype == np.uint16


def test_a_split_is_windows_of_its_own_part(joined, ids):
    train, validation = joined.split(25)
    np.testing.assert_array_equal(train.whole(), ids[:-25])
    np.testing.assert_array_equal(validation.whole(), ids[-25:])
    np.testing.assert_array_equal(validation.windows(np.array([3]), 4)[0], ids[-22:-18])


def test_a_short_split_at_the_end_of_a_text_longer_than_an_int32(tmp_path):
    file = tmp_path / "x.bin"
    with file.open("wb") as opened:  # sparse: takes no room
        opened.seek(2 * 2**32)
        opened.write(np.array([5, 6, 7], "<u2"))
    text = TokenText.of([shard_at(file, "uint16")], 9)
    _, validation = text.split(10)
    found = validation.windows(np.array([6, 7], np.int32), 3)
    assert found.tolist() == [[0, 5, 6], [5, 6, 7]]


def test_an_id_beyond_the_vocabulary_is_named(folder, ids):
    shards = [shard_at(file, None) for file in sorted(folder.glob("*.bin"))]
    largest = int(np.argmax(ids))
    assert largest > 31
    text = TokenText.of(shards, int(ids.max()))
    message = f"train_2.bin: .* below {ids.max()}, token {largest - 31} is {ids.max()}"
    with pytest.raises(ValueError, match=message):
        text.windows(np.array([0, largest - 2]), 5)
    text.windows(np.array([0]), 5)


def test_a_file_that_changed_is_noticed(joined, folder):
    (folder / "train_2.bin").write_bytes(bytes(50))
    joined.windows(np.array([0]), 30)
    with pytest.raises(ValueError, match="train_2.bin has changed"):
        joined.windows(np.array([40]), 5)
    (folder / "train_2.bin").write_bytes(bytes(1024 + 102))
    with pytest.raises(ValueError, match="had 1124 bytes, now it has 1126"):
        joined.windows(np.array([40]), 5)
    (folder / "train_2.bin").unlink()
    with pytest.raises(ValueError, match="train_2.bin: No such file"):
        joined.windows(np.array([40]), 5)


# -- the source --------------------------------------------------------------------


def test_the_end_is_held_out(folder, ids):
    data = source(folder).load()
    np.testing.assert_array_equal(data.arrays["train"], ids[:-20])
    np.testing.assert_array_equal(data.arrays["validation"], ids[-20:])
    assert (data.train_tokens, data.validation_tokens) == (61, 20)
    assert (data.vocab_size, data.unit, data.stream) == (1000, "token", None)


def test_validation_files_of_ones_own(folder, ids):
    write_shard(folder / "val.bin", ids[:9])
    data = source(folder, validation_paths=str(folder / "val.bin")).load()
    np.testing.assert_array_equal(data.arrays["train"], ids)
    np.testing.assert_array_equal(data.arrays["validation"], ids[:9])


def test_files_without_a_header(tmp_path, ids):
    (tmp_path / "train.bin").write_bytes(ids.tobytes())
    made = Tokens(paths=(str(tmp_path / "train.bin"),), dtype="uint16", vocab_size=1000)
    np.testing.assert_array_equal(made.load().arrays["train"], ids[:77])


def test_streamed_windows_are_those_of_the_batch(folder, monkeypatch):
    made = source(folder)
    arrays = made.load().arrays
    monkeypatch.setattr(tokens, "RESIDENT_BYTES", 0)
    data = made.load()
    assert data.arrays == {}
    size = {"batch_size": 6, "seq_len": 9}
    for split in ("train", "validation"):
        for seed in range(3):
            key = jax.random.key(seed)
            with jax.enable_x64(True):
                drawn = np.asarray(data.stream.draw(key, split=split, **size))
            found = data.stream.read(drawn, split=split, seq_len=9)
            expected = made.batch(arrays, key, split=split, **size)
            np.testing.assert_array_equal(found, expected)


def test_offsets_reach_all_of_a_text_longer_than_an_int32():
    """2**40 tokens: the shards need not be there to draw."""
    text = TokenText(shards=(), first=0, n_tokens=2**40, vocab_size=9)
    stream = tokens.TokenStream({"train": text})
    with jax.enable_x64(True):
        drawn = np.asarray(
            stream.draw(jax.random.key(0), split="train", batch_size=4000, seq_len=7)
        )
    assert drawn.dtype == np.int64
    assert drawn.min() >= 0
    counts, _ = np.histogram(drawn, bins=8, range=(0, 2**40))
    assert counts.sum() == 4000
    assert abs(counts - 500).max() < 5 * np.sqrt(500)
    assert len(set(drawn % 2**12)) > 2000, "all digits are random"


# -- fingerprints ------------------------------------------------------------------


def test_the_fingerprint_is_that_of_the_tokens(folder, ids, monkeypatch):
    first = source(folder).load().fingerprint
    monkeypatch.setattr(tokens, "RESIDENT_BYTES", 0)
    assert source(folder).load().fingerprint == first, "not of how they are read"
    assert source(folder, validation_fraction=0.3).load().fingerprint != first
    ids[40] += 1
    write_shard(folder / "train_2.bin", ids[31:])
    assert source(folder).load().fingerprint != first


def test_of_a_large_text_pieces_enter_the_fingerprint(tmp_path, monkeypatch):
    monkeypatch.setattr(token_text, "HASHED_WHOLE", 100)
    monkeypatch.setattr(token_text, "N_PIECES", 3)
    monkeypatch.setattr(token_text, "PIECE_TOKENS", 4)
    file = tmp_path / "x.bin"

    def of(changed=None, n=101):
        ids = np.zeros(n, "<u2")
        if changed is not None:
            ids[changed] = 1
        write_shard(file, ids)
        return TokenText.of([shard_at(file, None)], 9).fingerprint()

    seen = {of(), of(0), of(3), of(48), of(97), of(100), of(n=102)}
    assert len(seen) == 7
    assert of(20) == of()


# -- mistakes ----------------------------------------------------------------------


def refused(folder, **keywords):
    with pytest.raises(ValueError) as error:
        Tokens.check(
            **{"paths": f"{folder}/train_*.bin", "vocab_size": 1000, **keywords}
        )
    return str(error.value)


def test_missing_files_are_named_with_the_nearest(folder):
    said = refused(folder, paths=f"{folder}/train_7.bin")
    assert said.startswith("paths: no such file: ")
    assert "did you mean train_" in said
    assert "no file matches" in refused(folder, paths=f"{folder}/*.npy")
    assert refused(folder, paths=None).endswith("a list of them, got null")
    assert "got a folder" in refused(folder, paths=str(folder))
    twice = (f"{folder}/*.bin", f"{folder}/train_1.bin")
    assert "train_1.bin is named twice" in refused(folder, paths=twice)
    said = refused(folder, validation_paths=f"{folder}/val.bin")
    assert said.startswith("validation_paths: no such file")


def test_a_vocabulary_has_to_be_known(folder):
    assert "got null and no manifest.json" in refused(folder, vocab_size=None)
    (folder / "manifest.json").write_text('{"vocab_size": 321, "complete": true}')
    assert source(folder, vocab_size=None)  # its ids are checked by load
    with pytest.raises(ValueError, match="expected ids below 321"):
        source(folder, vocab_size=None).load()
    (folder / "manifest.json").write_text("{}")
    assert "expected a vocab_size in it" in refused(folder, vocab_size=None)
    manifest = {"vocab_size": 321, "complete": False}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert "is not complete" in refused(folder, vocab_size=None)


def test_ids_that_a_type_cannot_hold_are_not_guessed(tmp_path):
    (tmp_path / "x.bin").write_bytes(bytes(80))
    said = refused(
        tmp_path, paths=f"{tmp_path}/x.bin", dtype="uint16", vocab_size=70_000
    )
    assert said.startswith("dtype: uint16 holds ids up to 65535, vocab_size is 70000")
    assert "uint16 or uint32, got 'int8'" in refused(tmp_path, dtype="int8")


def test_files_of_two_types_are_refused(folder):
    write_shard(folder / "train_3.bin", np.arange(5, dtype="<u4"))
    said = refused(folder)
    assert "train_3.bin holds uint32, the files before it uint16" in said
    said = refused(
        folder,
        paths=f"{folder}/train_0.bin",
        validation_paths=f"{folder}/train_3.bin",
    )
    assert said.startswith("validation_paths: expected uint16")


def test_too_few_tokens_to_hold_some_out(folder):
    said = refused(folder, validation_fraction=0.02)
    assert said == "paths: expected at least 2 tokens of validation text, got 1"
