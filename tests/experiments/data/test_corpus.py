import numpy as np
import polars as pl
import pytest

from experiments.data import corpus, documents
from experiments.data.corpus import Corpus
from experiments.data.text import bigram_entropy, unigram_entropy

TEXT = "".join(f"line number {i}\n" for i in range(200))


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "a.txt").write_text(TEXT)
    rows = [f"row {i} ü" for i in range(50)]
    pl.DataFrame({"text": rows}).write_parquet(tmp_path / "b.parquet")
    ids = [[i, i + 1, i + 2] for i in range(50)]
    pl.DataFrame({"ids": ids, "text": rows}).write_parquet(tmp_path / "c.parquet")
    return tmp_path


def parts(source):
    """The two texts of a source of bytes."""
    arrays = source.load().arrays
    return [arrays[split].tobytes().decode() for split in ("train", "validation")]


# -- what is read ------------------------------------------------------------------


@pytest.mark.parametrize("size", [7, 50, 2**20])
def test_a_text_file_is_cut_behind_a_line(folder, monkeypatch, size):
    monkeypatch.setattr(documents, "TEXT_BYTES", size)
    train, validation = parts(
        Corpus(paths=str(folder / "a.txt"), validation_fraction=0.25)
    )
    assert train + validation == TEXT
    assert train.endswith("\n")
    assert len(validation) == pytest.approx(0.25 * len(TEXT), abs=20)


def test_pieces_of_a_text_file_are_whole_lines(folder, monkeypatch):
    """Cut within one, a tokenizer would make other tokens of it."""
    monkeypatch.setattr(documents, "TEXT_BYTES", 7)
    reader = documents.Reader((folder / "a.txt",), "text")
    pieces = list(reader.read((0, 0), (1, 0)))
    assert [p.content for p in pieces] == TEXT.splitlines(keepends=True)
    assert [p.ends for p in pieces] == [False] * 199 + [True]


@pytest.mark.parametrize("rows", [1, 7, 1024])
def test_of_a_parquet_file_whole_rows_are_held_out(folder, monkeypatch, rows):
    monkeypatch.setattr(documents, "ROWS", rows)
    train, validation = parts(
        Corpus(paths=str(folder / "b.parquet"), validation_fraction=0.2, separator="|")
    )
    assert train == "".join(f"row {i} ü|" for i in range(40))
    assert validation == "".join(f"row {i} ü|" for i in range(40, 50))


def test_files_stand_one_behind_the_other_and_the_end_is_held_out(folder):
    """Half by size of two equal files: the second one."""
    for name in "xy":
        (folder / f"{name}.md").write_text(TEXT)
    train, validation = parts(
        Corpus(paths=f"{folder}/*.md", validation_fraction=0.25, separator="#\n")
    )
    assert train + validation == TEXT + "#\n" + TEXT + "#\n"
    assert train.startswith(TEXT + "#\nline number 0\n")


def test_files_for_validation(folder):
    train, validation = parts(
        Corpus(paths=str(folder / "a.txt"), validation_paths=str(folder / "b.parquet"))
    )
    assert train == TEXT
    assert validation.startswith("row 0 ürow 1 ü")


def test_bytes_have_the_references_of_a_text(folder):
    data = Corpus(paths=str(folder / "a.txt")).load()
    validation = data.arrays["validation"]
    assert data.references == {
        "unigram": unigram_entropy(validation),
        "bigram": bigram_entropy(validation),
    }
    assert (data.vocab_size, data.unit) == (256, "byte")


def test_token_ids_are_taken_as_they_are(folder):
    source = Corpus(
        paths=str(folder / "c.parquet"),
        column="ids",
        vocab_size=70_000,
        validation_fraction=0.2,
    )
    data = source.load()
    expected = np.array([[i, i + 1, i + 2] for i in range(50)]).ravel()
    np.testing.assert_array_equal(data.arrays["train"], expected[:120])
    np.testing.assert_array_equal(data.arrays["validation"], expected[120:])
    assert data.arrays["train"].dtype == np.uint32
    assert (data.vocab_size, data.unit) == (70_000, "token")


def test_a_tokenizer_of_ones_own(folder):
    pytest.importorskip("tokenizers")
    path = word_tokenizer(folder)
    source = Corpus(paths=str(folder / "b.parquet"), tokenizer=path, separator="<end>")
    data = source.load()
    # "row 3 ü" -> row, a number it does not know, ü, and the end.
    assert data.arrays["train"][:8].tolist() == [2, 1, 3, 0, 2, 1, 3, 0]
    assert data.train_tokens + data.validation_tokens == 200
    assert data.vocab_size == 10, "the largest id, not the number of tokens"
    # In the validation rows row, ü and the end are a quarter each, and so is the number.
    assert data.references["unigram"] == pytest.approx(np.log(4))


def word_tokenizer(folder):
    from tokenizers import Tokenizer, models, pre_tokenizers

    ids = {"<end>": 0, "<unknown>": 1, "row": 2, "ü": 3, "far": 9}
    made = Tokenizer(models.WordLevel(ids, unk_token="<unknown>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.save(str(folder / "tokenizer.json"))
    return str(folder / "tokenizer.json")


def test_the_fingerprint_follows_what_is_read(folder):
    a, b = str(folder / "a.txt"), str(folder / "b.parquet")
    prints = [
        Corpus(**keywords).load().fingerprint
        for keywords in (
            {"paths": a},
            {"paths": b},
            {"paths": a, "separator": "#"},
            {"paths": a, "validation_fraction": 0.1},
        )
    ]
    assert len(set(prints)) == 4
    assert Corpus(paths=a).load().fingerprint == prints[0]


# -- mistakes ----------------------------------------------------------------------


def refused(**keywords):
    with pytest.raises(ValueError) as error:
        Corpus.check(**keywords)
    return str(error.value)


def test_other_columns_are_refused_with_the_nearest(folder):
    path = str(folder / "c.parquet")
    said = refused(paths=path, column="txt")
    assert said.startswith("column: ")
    assert "no column 'txt'; did you mean text? (it has ids, text)" in said
    pl.DataFrame({"text": [1.5]}).write_parquet(folder / "d.parquet")
    assert "got Float64" in refused(paths=str(folder / "d.parquet"))


def test_files_that_are_not_what_they_seem(folder):
    (folder / "e.parquet").write_text("no")
    assert "e.parquet: not a Parquet file" in refused(paths=str(folder / "e.parquet"))
    (folder / "empty.txt").write_text("")
    assert "the file is empty" in refused(paths=str(folder / "empty.txt"))
    (folder / "latin.txt").write_bytes(b"a\nb\n\xe9\n" * 9)
    with pytest.raises(ValueError, match=r"latin.txt: expected UTF-8, byte 4 is 0xe9"):
        Corpus(paths=str(folder / "latin.txt")).load()
    pl.DataFrame({"text": ["abc", None]}).write_parquet(folder / "f.parquet")
    with pytest.raises(ValueError, match="f.parquet: row 1 has no 'text'"):
        Corpus(paths=str(folder / "f.parquet"), validation_fraction=0.5).load()


def test_keywords_that_do_not_belong_to_the_files(folder):
    ids = {"paths": str(folder / "c.parquet"), "column": "ids"}
    assert "vocab_size: expected the number" in refused(**ids)
    assert refused(**ids, vocab_size=99, separator="x").startswith("separator: ")
    assert refused(**ids, vocab_size=99, tokenizer="x").startswith("tokenizer: ")
    text = {"paths": str(folder / "a.txt")}
    assert refused(**text, vocab_size=99).startswith("vocab_size: of text")
    both = (str(folder / "a.txt"), ids["paths"])
    assert "expected one kind" in refused(paths=both, column="ids")
    said = refused(**ids, validation_paths=text["paths"], vocab_size=99)
    assert said == "validation_paths: expected token ids as in paths, got text"
    with pytest.raises(ValueError, match=r"in 0 \.\. 50, got 51 in row 49 of .*c\.par"):
        Corpus(**ids, vocab_size=51).load()


def test_tokenizers_that_are_none(folder):
    pytest.importorskip("tokenizers")
    text = {"paths": str(folder / "a.txt")}
    word_tokenizer(folder)
    said = refused(**text, tokenizer=str(folder / "tokeniser.json"))
    assert said.startswith("tokenizer: no such file")
    assert said.endswith("did you mean tokenizer.json?")
    (folder / "bad.json").write_text("{}")
    said = refused(**text, tokenizer=str(folder / "bad.json"))
    assert "expected a tokenizer.json (" in said
    said = refused(**text, tokenizer=str(folder / "tokenizer.json"), separator="<edn>")
    assert said.startswith("separator: ")
    assert "no token '<edn>'; did you mean <end>?" in said


def test_nothing_to_hold_out_is_refused(folder):
    (folder / "one.txt").write_text("one line only")
    with pytest.raises(ValueError, match=r"of validation text, got 0: too few rows or"):
        Corpus(paths=str(folder / "one.txt")).load()


def test_more_than_fits_is_for_the_task(folder, monkeypatch):
    monkeypatch.setattr(corpus, "MAX_BYTES", 1000)
    with pytest.raises(ValueError, match="run task=tokenize"):
        Corpus(paths=str(folder / "a.txt")).load()
