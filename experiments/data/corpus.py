"""Text and Parquet files of the user's own, with or without a tokenizer."""

import hashlib
from collections.abc import Iterator

import numpy as np

from experiments.data import text
from experiments.data.dataset import SPLITS, Dataset
from experiments.data.documents import Document, Reader, cut_at
from experiments.data.encoders import Bytes, Ids, Tokenizer
from experiments.data.files import files_of

MAX_BYTES = 2**30  # more is for task=tokenize, once, and data=tokens
BATCH_PIECES, BATCH_CHARACTERS = 1024, 2**23  # are encoded at a time


class Corpus:
    """Documents of text files (any suffix) and Parquet files (`.parquet`), as tokens.

    A token is a byte, unless there is a tokenizer or the files hold token ids. A text
    file is one document, a row of a Parquet file is one. Everything is encoded anew by
    each process that loads it: `task=tokenize` does so once, for data of any size.

    Args:
        paths: files or patterns (`corpus/*.parquet`), one or a list.
        validation_paths: likewise; None holds out the end of `paths`.
        validation_fraction: share held out, by size, only where `validation_paths` is
            None: whole rows, and whole lines of a text file.
        column: of Parquet files: texts, or lists of token ids.
        tokenizer: a `tokenizer.json` of the `tokenizers` library; None takes bytes.
        separator: put behind every document: with a tokenizer one of its tokens
            (`<|endoftext|>`), with bytes any text; None puts nothing.
        vocab_size: of token ids, and needed for them; None where there is text.
    """

    traced = ()

    @staticmethod
    def check(
        *,
        paths: str | tuple | None = None,
        validation_paths: str | tuple | None = None,
        validation_fraction: float = 0.05,
        column: str = "text",
        tokenizer: str | None = None,
        separator: str | None = None,
        vocab_size: int | None = None,
    ) -> None:
        """Refuses files that are missing or hold something else; reads no document."""
        text.check_validation_fraction(validation_fraction)
        made = Corpus(
            paths=paths,
            validation_paths=validation_paths,
            validation_fraction=validation_fraction,
            column=column,
            tokenizer=tokenizer,
            separator=separator,
            vocab_size=vocab_size,
        )
        made.encoder()
        made.spans()

    def __init__(
        self,
        *,
        paths: str | tuple | None = None,
        validation_paths: str | tuple | None = None,
        validation_fraction: float = 0.05,
        column: str = "text",
        tokenizer: str | None = None,
        separator: str | None = None,
        vocab_size: int | None = None,
    ):
        self.paths = paths
        self.validation_paths = validation_paths
        self.validation_fraction = validation_fraction
        self.column = column
        self.tokenizer = tokenizer
        self.separator = separator
        self.vocab_size = vocab_size

    def readers(self) -> dict[str, Reader]:
        """What reads each split; one and the same where the end is held out."""
        train = Reader(tuple(files_of(self.paths)), self.column)
        if self.validation_paths is None:
            return {"train": train, "validation": train}
        files = files_of(self.validation_paths, "validation_paths")
        return {"train": train, "validation": Reader(tuple(files), self.column)}

    def spans(self) -> dict[str, tuple[tuple[int, int], tuple[int, int]]]:
        """Split -> where it begins and ends: file and row or byte."""
        readers = self.readers()
        ends = {split: (len(r.files), 0) for split, r in readers.items()}
        if self.validation_paths is not None:
            return {split: ((0, 0), ends[split]) for split in SPLITS}
        cut = cut_at(readers["train"], self.validation_fraction)
        return {"train": ((0, 0), cut), "validation": (cut, ends["validation"])}

    def encoder(self) -> Bytes | Ids | Tokenizer:
        """What makes token ids of a document.

        Raises:
            ValueError: as `Reader.check`, or keywords that do not belong to the files.
        """
        readers = self.readers()
        train, validation = (readers[split].check() for split in SPLITS)
        if train != validation:
            raise ValueError(
                "validation_paths: expected token ids as in paths, got text"
                if train
                else "validation_paths: expected text as in paths, got token ids"
            )
        if not train:
            if self.vocab_size is not None:
                raise ValueError(
                    "vocab_size: of text the tokenizer says it: expected null, "
                    f"got {self.vocab_size}"
                )
            if self.tokenizer is None:
                return Bytes(self.separator)
            return Tokenizer(self.tokenizer, self.separator)
        for key in ("tokenizer", "separator"):
            if getattr(self, key) is not None:
                raise ValueError(
                    f"{key}: {self.column!r} holds token ids: expected null, "
                    f"got {getattr(self, key)!r}"
                )
        if self.vocab_size is None or not 1 <= self.vocab_size < 2**31:
            raise ValueError(
                "vocab_size: expected the number of token ids that "
                f"{self.column!r} is made of, got {self.vocab_size}"
            )
        return Ids(self.vocab_size)

    def encoded(
        self, split: str, encoder, start: tuple[int, int] | None = None
    ) -> Iterator[tuple[Document, np.ndarray]]:
        """Each piece of a split with its ids, from its beginning or from `start` on."""
        first, last = self.spans()[split]
        pieces = self.readers()[split].read(start or first, last)
        for batch in _batches(pieces):
            yield from zip(batch, encoder.encode(batch), strict=True)

    def load(self) -> Dataset:
        """Reads and encodes everything.

        Raises:
            ValueError: as `check`, too much to do so each time, or an id beyond the
                vocabulary.
        """
        files = {f for reader in self.readers().values() for f in reader.files}
        n_bytes = sum(file.stat().st_size for file in files)
        if n_bytes > MAX_BYTES:
            raise ValueError(
                f"paths: {n_bytes / 2**30:.1f} GiB are too much to encode at each start: "
                "run task=tokenize with these data once, and then data=tokens"
            )
        encoder = self.encoder()
        train, validation = (self._tokens(split, encoder) for split in SPLITS)
        if encoder.unit == "byte":
            train, validation = train.tobytes(), validation.tobytes()
            digest = hashlib.sha256(train + validation)
            digest.update(str(len(train)).encode())
            return text.text_dataset(train, validation, digest.hexdigest())
        digest = hashlib.sha256(
            f"{encoder.vocab_size} {len(train)} {train.dtype}".encode()
        )
        for tokens in (train, validation):
            digest.update(tokens.tobytes())
        return Dataset(
            arrays={"train": train, "validation": validation},
            vocab_size=encoder.vocab_size,
            unit=encoder.unit,
            fingerprint=digest.hexdigest(),
            train_tokens=len(train),
            validation_tokens=len(validation),
            references={"unigram": text.unigram_entropy(validation)},
        )

    def _tokens(self, split: str, encoder) -> np.ndarray:
        found = [ids for _, ids in self.encoded(split, encoder)]
        n_tokens = sum(map(len, found))
        if n_tokens < 2:
            raise ValueError(f"data: {too_few(split, n_tokens)}")
        return np.concatenate(found)

    def batch(self, arrays, key, *, split, batch_size, seq_len):
        """Random windows, int32 [batch_size, seq_len + 1]; see `text.window_batch`."""
        return text.window_batch(
            arrays, key, split=split, batch_size=batch_size, seq_len=seq_len
        )


def too_few(split: str, n_tokens: int) -> str:
    """What is wrong with a split that has no token to predict."""
    return (
        f"expected at least 2 tokens of {split} text, got {n_tokens}: too few rows or "
        "lines to hold some out; see data.validation_fraction, data.validation_paths"
    )


def _batches(pieces: Iterator[Document]) -> Iterator[list[Document]]:
    batch, size = [], 0
    for piece in pieces:
        batch.append(piece)
        size += len(piece.content)
        if len(batch) == BATCH_PIECES or size >= BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
