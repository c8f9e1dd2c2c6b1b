"""One long text in many files, read a window at a time."""

import dataclasses
import hashlib
import itertools
import os
from collections.abc import Sequence

import numpy as np

from experiments.data.shards import Shard

# Up to so many bytes a fingerprint is that of everything; of more, that of pieces.
HASHED_WHOLE = 2**26
N_PIECES = 1024
PIECE_TOKENS = 2048


@dataclasses.dataclass(frozen=True)
class TokenText:
    """Tokens first .. first + n_tokens - 1 of shards that are one text, in their order.

    A window may begin in one shard and end in the next. Windows are read with `pread`,
    not through a memory map: pages of the file then never count as memory of the
    process, however large the file and however long the run.
    """

    shards: tuple[Shard, ...]
    first: int
    n_tokens: int
    vocab_size: int

    @classmethod
    def of(cls, shards: Sequence[Shard], vocab_size: int) -> "TokenText":
        """All of some shards."""
        return cls(tuple(shards), 0, sum(s.n_tokens for s in shards), vocab_size)

    def split(self, n_last: int) -> tuple["TokenText", "TokenText"]:
        """All but the last `n_last` tokens, and those."""
        n = self.n_tokens - n_last
        return (
            dataclasses.replace(self, n_tokens=n),
            dataclasses.replace(self, first=self.first + n, n_tokens=n_last),
        )

    @property
    def dtype(self) -> np.dtype:
        return self.shards[0].dtype

    @property
    def n_bytes(self) -> int:
        return self.n_tokens * self.dtype.itemsize

    def windows(self, starts: np.ndarray, width: int) -> np.ndarray:
        """[*starts.shape, width] of the files' type, from token `starts` of this text.

        Raises:
            ValueError: an id beyond the vocabulary, or a file that is not as it was.
        """
        out = np.empty((starts.size, width), self.dtype)
        ends = np.cumsum([s.n_tokens for s in self.shards])
        begins = ends - [s.n_tokens for s in self.shards]
        # A short split may begin where 32 bits do not reach.
        at = starts.ravel().astype(np.int64) + self.first
        shard_of = np.searchsorted(ends, at, side="right")
        pieces = []  # (shard, token in it, row, column, number of tokens)
        for row, (k, token) in enumerate(zip(shard_of, at, strict=True)):
            column = 0
            while column < width:
                n = int(min(width - column, ends[k] - token))
                pieces.append((int(k), int(token - begins[k]), row, column, n))
                column, token, k = column + n, token + n, k + 1
        pieces.sort()
        for k, group in itertools.groupby(pieces, key=lambda piece: piece[0]):
            shard = self.shards[k]
            with _opened(shard) as file:
                for _, token, row, column, n in group:
                    out[row, column : column + n] = _read(file, shard, token, n)
        if out.size and out.max() >= self.vocab_size:
            self._refuse(out, at)
        return out.reshape(*starts.shape, width)

    def whole(self) -> np.ndarray:
        """[n_tokens]: everything; raises as `windows` does."""
        return self.windows(np.array([0]), self.n_tokens)[0]

    def fingerprint(self) -> str:
        """sha256 over type, sizes and tokens.

        Of more than `HASHED_WHOLE` bytes only `N_PIECES` evenly spaced pieces enter, the
        first and the last tokens among them: a text that is changed between them, at
        the same length, is not noticed.
        """
        digest = hashlib.sha256(f"{self.dtype.str} {self.n_tokens}".encode())
        if self.n_bytes <= HASHED_WHOLE:
            digest.update(self.whole())
        else:
            starts = np.linspace(0, self.n_tokens - PIECE_TOKENS, N_PIECES)
            digest.update(self.windows(starts.astype(np.int64), PIECE_TOKENS))
        return digest.hexdigest()

    def _refuse(self, windows: np.ndarray, at: np.ndarray) -> None:
        row, column = np.argwhere(windows >= self.vocab_size)[0]
        token = at[row] + column
        for shard in self.shards:
            if token < shard.n_tokens:
                break
            token -= shard.n_tokens
        raise ValueError(
            f"vocab_size: {shard.path}: expected ids below {self.vocab_size}, "
            f"token {token} is {windows[row, column]}"
        )


def _opened(shard: Shard):
    """The file for reading, unbuffered, if it still has the size it had."""
    try:
        file = shard.path.open("rb", buffering=0)
    except OSError as error:
        raise ValueError(f"paths: {shard.path}: {error.strerror}") from None
    n_bytes = os.fstat(file.fileno()).st_size
    if n_bytes != shard.n_bytes:
        file.close()
        raise ValueError(
            f"paths: {shard.path} has changed: it had {shard.n_bytes} bytes, "
            f"now it has {n_bytes}"
        )
    return file


def _read(file, shard: Shard, token: int, n: int) -> np.ndarray:
    """`n` ids from number `token` of a shard on."""
    width = shard.dtype.itemsize
    parts, left, at = [], n * width, shard.offset + token * width
    while left:  # a call returns at most 2 GiB, and may return less than asked for
        part = os.pread(file.fileno(), left, at)
        if not part:
            raise ValueError(f"paths: {shard.path} has changed: it ends too soon")
        parts.append(part)
        left, at = left - len(part), at + len(part)
    return np.frombuffer(parts[0] if len(parts) == 1 else b"".join(parts), shard.dtype)
