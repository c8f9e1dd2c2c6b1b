"""task=tokenize: shards for data=tokens, whole or not at all, the same after a stop."""

import hashlib
import io
import json
import shutil

import numpy as np
import polars as pl
import pytest
from rich.console import Console

from experiments import api
from experiments.data import documents
from experiments.data.corpus import Corpus
from experiments.data.tokens import Tokens
from experiments.errors import UserError
from experiments.tasks import tokenize

N_ROWS = 60


@pytest.fixture(autouse=True)
def small_reads(monkeypatch):
    monkeypatch.setattr(documents, "ROWS", 8)
    monkeypatch.setattr(documents, "TEXT_BYTES", 100)


@pytest.fixture
def files(tmp_path):
    folder = tmp_path / "corpus"
    folder.mkdir()
    for name in "ab":
        rows = [f"{name} row {i}\n" * (1 + i % 3) for i in range(N_ROWS)]
        pl.DataFrame({"text": rows}).write_parquet(folder / f"{name}.parquet")
    (folder / "c.txt").write_text("".join(f"line {i}\n" for i in range(200)))
    return folder


@pytest.fixture
def config(files, tmp_path):
    def config(*overrides):
        (made,) = api.compose(
            [
                "task=tokenize", f"data.paths={files}/*", "task.shard_tokens=400",
                "data.validation_fraction=0.3", f"runtime.output_dir={tmp_path}",
                "runtime.compilation_cache=null", *overrides,
            ]
        )  # fmt: skip
        return made

    return config


def answer(config):
    out = io.StringIO()
    config.task.build({}, "task").answer(config, Console(file=out, width=200))
    return out.getvalue()


def contents(folder):
    return {p.name: p.read_bytes() for p in sorted(folder.iterdir())}


def manifest(folder):
    return json.loads((folder / "manifest.json").read_text())


def test_the_shards_hold_what_the_corpus_does(config, files, tmp_path):
    answer(config())
    source = Corpus(paths=f"{files}/*", validation_fraction=0.3).load()
    written = Tokens(
        paths=f"{tmp_path}/tokens/train_*.bin",
        validation_paths=f"{tmp_path}/tokens/val_*.bin",
    ).load()
    assert written.vocab_size == 256
    for split in ("train", "validation"):
        np.testing.assert_array_equal(written.arrays[split], source.arrays[split])


def test_the_manifest_says_what_is_there(config, tmp_path):
    said = answer(config())
    folder = tmp_path / "tokens"
    node = manifest(folder)
    files = contents(folder)
    assert node["complete"]
    assert {s["file"] for s in node["shards"]} == files.keys() - {"manifest.json"}
    for shard in node["shards"]:
        content = files[shard["file"]]
        assert shard["sha256"] == hashlib.sha256(content).hexdigest()
        assert len(content) == 1024 + 2 * shard["n_tokens"]
    train = [s["n_tokens"] for s in node["shards"] if s["split"] == "train"]
    assert len(train) > 3
    assert all(400 <= n < 520 for n in train[:-1]), "and whole documents"
    assert f"train: {sum(train):,} tokens in {len(train)} shards" in said
    assert "data.paths=" in said


class Stopped(Exception):
    pass


@pytest.mark.parametrize("at", [0, 1, 4])
@pytest.mark.parametrize("where", ["before", "within", "behind"])
def test_stopped_anywhere_it_goes_on_to_the_same_bytes(
    config, tmp_path, monkeypatch, at, where
):
    answer(config("name=whole"))
    write, put = tokenize.write_shard, tokenize._put
    written = []

    def stops(path, tokens):
        if len(written) == at and where == "before":
            raise Stopped
        content = write(path, tokens)
        written.append(path)
        if (
            len(written) == at + 1 and where == "within"
        ):  # no word of it in the manifest
            raise Stopped
        return content

    def puts(folder, node):
        put(folder, node)
        if len(written) == at + 1 and where == "behind":
            raise Stopped

    monkeypatch.setattr(tokenize, "write_shard", stops)
    monkeypatch.setattr(tokenize, "_put", puts)
    with pytest.raises(Stopped):
        answer(config("name=cut"))
    assert not manifest(tmp_path / "cut")["complete"]
    monkeypatch.setattr(tokenize, "write_shard", write)
    monkeypatch.setattr(tokenize, "_put", put)
    answer(config("name=cut"))
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")


def test_a_second_launch_does_nothing_and_a_lost_shard_is_made_again(
    config, tmp_path, monkeypatch
):
    answer(config())
    folder = tmp_path / "tokens"
    before = contents(folder)
    (folder / "train_000001.bin").unlink()
    (folder / "val_000000.bin").write_bytes(b"short")
    answer(config())
    assert contents(folder) == before

    def write(*_):
        raise AssertionError("wrote")

    monkeypatch.setattr(tokenize, "write_shard", write)
    assert "finished before" in answer(config())


def refused(config):
    with pytest.raises(UserError) as error:
        answer(config)
    return str(error.value)


def test_shards_of_something_else_are_left_alone(config, files, tmp_path):
    answer(config())
    before = contents(tmp_path / "tokens")
    for other in ("task.shard_tokens=500", "data.validation_fraction=0.4"):
        assert "shards of other files or settings" in refused(config(other))
    (files / "c.txt").write_text("x\n" * 700)
    assert "shards of other files or settings" in refused(config())
    assert contents(tmp_path / "tokens") == before
    (tmp_path / "tokens/manifest.json").unlink()
    assert "holds .bin files without a manifest.json" in refused(config())
    (tmp_path / "tokens/manifest.json").write_text("[]")
    assert "expected the manifest of task=tokenize" in refused(config())


def test_ids_too_large_for_16_bits_are_written_in_32(config, files, tmp_path):
    shutil.rmtree(files)
    files.mkdir()
    ids = [[0, 65_535, 65_536, 69_999]] * 40
    pl.DataFrame({"ids": ids}).write_parquet(files / "x.parquet")
    answer(config("data.column=ids", "data.vocab_size=70000"))
    data = Tokens(
        paths=f"{tmp_path}/tokens/train_*.bin",
        validation_paths=f"{tmp_path}/tokens/val_*.bin",
    ).load()
    assert data.arrays["train"].tolist() == [0, 65_535, 65_536, 69_999] * 28
    assert data.vocab_size == 70_000


def test_mistakes_are_one_line_of_their_key(config, files):
    (generated,) = api.compose(["task=tokenize", "data=markov"])
    said = refused(generated)
    assert said.startswith("data: task=tokenize reads text and Parquet files")
    (files / "c.txt").write_bytes(b"\xe9\n" * 200)
    said = refused(config())
    assert said.startswith("data.paths: ")
    assert "c.txt: expected UTF-8" in said
