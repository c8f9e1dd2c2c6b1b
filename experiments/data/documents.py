"""Texts and Parquet files of one's own, read a document at a time."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl

from experiments.errors import nearest

PARQUET = ".parquet"
TEXT_BYTES = 2**20  # a text file is read in pieces of about so many, cut behind a line
ROWS = 1024  # of a Parquet file are read at a time


@dataclasses.dataclass(frozen=True)
class Document:
    """A piece of the data: a row of a Parquet file, or lines of a text file.

    content: the text, or its token ids where a Parquet file holds those.
    ends: whether a document ends with it; only the last piece of a text file does.
    file: where it is from.
    next: where the next piece begins: number of the file, and row or byte in it.
    """

    content: str | np.ndarray
    ends: bool
    file: Path
    next: tuple[int, int]


@dataclasses.dataclass(frozen=True)
class Reader:
    """Documents of some files, in their order.

    column: of Parquet files: texts, or lists of token ids.
    """

    files: tuple[Path, ...]
    column: str

    def sizes(self) -> list[int]:
        """Rows of each Parquet file, bytes of each text file."""
        return [
            _n_rows(file) if file.suffix == PARQUET else file.stat().st_size
            for file in self.files
        ]

    def check(self) -> bool:
        """Looks at schemas and sizes; whether the files hold token ids.

        Raises:
            ValueError: an empty file, no such column, or one of another type.
        """
        kinds = {}
        for file, size in zip(self.files, self.sizes(), strict=True):
            if size == 0:
                raise ValueError(
                    f"paths: {file}: expected documents, the file is empty"
                )
            kinds[file] = file.suffix == PARQUET and self._holds_ids(file)
        if len(set(kinds.values())) > 1:
            ids = next(file for file, kind in kinds.items() if kind)
            texts = next(file for file, kind in kinds.items() if not kind)
            raise ValueError(
                f"paths: {ids} holds token ids, {texts} holds text: expected one kind"
            )
        return any(kinds.values())

    def _holds_ids(self, file: Path) -> bool:
        schema = _schema(file)
        if self.column not in schema:
            raise ValueError(
                f"column: {file} has no column {self.column!r}"
                f"{nearest(self.column, schema)} (it has {', '.join(schema)})"
            )
        dtype = schema[self.column]
        is_list = isinstance(dtype, (pl.List, pl.Array))
        if is_list and dtype.inner.is_integer():
            return True
        if dtype != pl.String:
            raise ValueError(
                f"column: {file}: expected text or lists of token ids in "
                f"{self.column!r}, got {dtype}"
            )
        return False

    def read(self, start: tuple[int, int], end: tuple[int, int]) -> Iterator[Document]:
        """Documents from `start` to before `end`: (file, row or byte) each."""
        for k, file in enumerate(self.files):
            if k < start[0] or (k, 0) >= end:
                continue
            first = start[1] if k == start[0] else 0
            last = end[1] if k == end[0] else None
            if file.suffix == PARQUET:
                pieces = _rows(file, self.column, first, last)
            else:
                pieces = _lines(file, first, last)
            for content, ends, at in pieces:
                yield Document(content, ends, file, (k, at))


def cut_at(reader: Reader, fraction: float) -> tuple[int, int]:
    """(file, row or byte) from where on about `fraction` of the data, by size, lie.

    Files count by their bytes, and a row as an equal share of its file. A text file is
    cut behind the end of a line.
    """
    weights = np.array([file.stat().st_size for file in reader.files], float)
    behind = (1 - fraction) * weights.sum() - (np.cumsum(weights) - weights)
    k = int(np.flatnonzero(behind >= 0)[-1])
    file, size = reader.files[k], reader.sizes()[k]
    at = int(behind[k] / weights[k] * size)
    return (k, at) if file.suffix == PARQUET else (k, _line_behind(file, at))


def _line_behind(file: Path, at: int) -> int:
    with file.open("rb") as opened:
        opened.seek(at)
        opened.readline()
        return opened.tell()


def _lines(file: Path, first: int, last: int | None) -> Iterator[tuple[str, bool, int]]:
    size = file.stat().st_size
    last = size if last is None else last
    with file.open("rb") as opened:
        opened.seek(first)
        while opened.tell() < last:
            at = opened.tell()
            piece = opened.read(min(TEXT_BYTES, last - at))
            if opened.tell() < last:
                piece += opened.readline()
            try:
                content = piece.decode("utf-8")
            except UnicodeDecodeError as error:
                raise ValueError(
                    f"paths: {file}: expected UTF-8, byte {at + error.start} is "
                    f"{piece[error.start]:#x}"
                ) from None
            yield content, opened.tell() >= size, opened.tell()


def _rows(file: Path, column: str, first: int, last: int | None):
    last = _n_rows(file) if last is None else last
    frame = pl.scan_parquet(file, glob=False).select(column)
    for at in range(first, last, ROWS):
        values = frame.slice(at, min(ROWS, last - at)).collect()[column]
        for i, value in enumerate(values):
            if value is None:
                raise ValueError(f"paths: {file}: row {at + i} has no {column!r}")
            is_text = isinstance(value, str)
            content = value if is_text else np.asarray(value, np.int64)
            yield content, True, at + i + 1


def _schema(file: Path) -> dict[str, pl.DataType]:
    try:
        return dict(pl.read_parquet_schema(file))
    except (pl.exceptions.PolarsError, OSError) as error:
        line = str(error).splitlines()[0]
        raise ValueError(f"paths: {file}: not a Parquet file ({line})") from None


def _n_rows(file: Path) -> int:
    _schema(file)
    return pl.scan_parquet(file, glob=False).select(pl.len()).collect().item()
