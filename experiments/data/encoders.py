"""From documents to token ids: bytes, a tokenizer of the user's, or ids as they are."""

import functools
import hashlib
from pathlib import Path

import numpy as np

from experiments.data.documents import Document
from experiments.data.shards import dtype_for
from experiments.data.text import N_BYTES
from experiments.errors import nearest


class Bytes:
    """UTF-8 bytes of the text; `separator` is any text."""

    vocab_size = N_BYTES
    unit = "byte"

    def __init__(self, separator: str | None):
        self.separator = (separator or "").encode()
        self.name = f"bytes {separator!r}"

    def encode(self, documents: list[Document]) -> list[np.ndarray]:
        """uint8 [n] of each document."""
        return [
            np.frombuffer(d.content.encode() + self.separator * d.ends, np.uint8)
            for d in documents
        ]


class Ids:
    """Token ids as a Parquet file holds them; `separator` has no meaning."""

    unit = "token"

    def __init__(self, vocab_size: int):
        self.vocab_size = vocab_size
        self.name = f"ids {vocab_size}"

    def encode(self, documents: list[Document]) -> list[np.ndarray]:
        """[n] of each document.

        Raises:
            ValueError: an id beyond the vocabulary.
        """
        for document in documents:
            ids = document.content
            bad = ids[(ids < 0) | (ids >= self.vocab_size)]
            if bad.size:
                raise ValueError(
                    f"vocab_size: expected ids in 0 .. {self.vocab_size - 1}, "
                    f"got {bad[0]} in row {document.next[1] - 1} of {document.file}"
                )
        return [d.content.astype(dtype_for(self.vocab_size)) for d in documents]


class Tokenizer:
    """A `tokenizer.json` of the `tokenizers` library; `separator` is one of its tokens.

    The library's own start and end tokens are left out: they would be put around every
    piece of a text file.
    """

    unit = "token"

    def __init__(self, path: str, separator: str | None):
        file = Path(path).expanduser()
        if not file.is_file():
            beside = file.parent.glob("*.json") if file.parent.is_dir() else ()
            hint = nearest(file.name, [other.name for other in beside])
            raise ValueError(f"tokenizer: no such file: {file.absolute()}{hint}")
        content = file.read_bytes()
        self._tokenizer = parsed(content, str(file))
        ids = self._tokenizer.get_vocab(with_added_tokens=True)
        self.vocab_size = max(ids.values()) + 1  # ids may have holes
        if separator is not None and separator not in ids:
            raise ValueError(
                f"separator: {file} has no token {separator!r}{nearest(separator, ids)}"
            )
        self.separator = [] if separator is None else [ids[separator]]
        digest = hashlib.sha256(content).hexdigest()
        self.name = f"tokenizer {digest} {separator!r}"

    def encode(self, documents: list[Document]) -> list[np.ndarray]:
        """[n] of each document; the library uses all cores."""
        encoded = self._tokenizer.encode_batch(
            [d.content for d in documents], add_special_tokens=False
        )
        dtype = dtype_for(self.vocab_size)
        return [
            np.array(e.ids + self.separator * d.ends, dtype)
            for d, e in zip(documents, encoded, strict=True)
        ]


@functools.lru_cache(maxsize=2)
def parsed(content: bytes, name: str):
    """A `tokenizers.Tokenizer`, once for all runs of a sweep that use it.

    Raises:
        ValueError: the package is not there, or the file is none of its files.
    """
    try:
        import tokenizers
    except ImportError:
        raise ValueError(
            "tokenizer: needs a package: pip install 'blocklab[data]'"
        ) from None
    try:
        made = tokenizers.Tokenizer.from_str(content.decode())
    except Exception as error:  # the library raises nothing more particular
        raise ValueError(
            f"tokenizer: {name}: expected a tokenizer.json ({error})"
        ) from None
    made.no_truncation()
    made.no_padding()
    return made
