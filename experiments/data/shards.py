"""Files of token ids: what is in one, and how one is written."""

import dataclasses
import os
from pathlib import Path

import numpy as np

HEADER_BYTES = 1024  # 256 int32: magic, version, number of tokens, zeros
# Magic -> version and type of the ids that follow; llm.c, dev/data/data_common.py.
KINDS = {20240520: (1, np.dtype("<u2")), 20240801: (7, np.dtype("<u4"))}
DTYPES = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}
MAX_TOKENS = 2**31 - 1  # the header counts in int32


@dataclasses.dataclass(frozen=True)
class Shard:
    """One file: `n_tokens` ids of type `dtype`, from byte `offset` on."""

    path: Path
    dtype: np.dtype
    offset: int
    n_tokens: int

    @property
    def n_bytes(self) -> int:
        """Of the whole file."""
        return self.offset + self.n_tokens * self.dtype.itemsize


def dtype_for(vocab_size: int) -> np.dtype:
    """The narrowest type of a shard that holds all ids below `vocab_size`."""
    return DTYPES["uint16" if vocab_size <= 2**16 else "uint32"]


def shard_at(path: Path, dtype: str | None) -> Shard:
    """Looks at a file's header and size; reads nothing else.

    Args:
        dtype: type of the ids of a file without a header; None expects a header.

    Raises:
        ValueError: not such a file, of another size than it says, or without a token.
    """
    n_bytes = path.stat().st_size
    with path.open("rb") as file:
        header = np.frombuffer(file.read(12), "<i4", count=-1 if n_bytes >= 12 else 0)
    magic = int(header[0]) if len(header) else None
    if dtype is not None:
        return _without_header(path, n_bytes, magic, dtype)
    if magic not in KINDS:
        known = " or ".join(f"{m} ({t.name})" for m, (_, t) in KINDS.items())
        found = f"{n_bytes} bytes" if magic is None else magic
        raise ValueError(
            f"paths: {path}: expected a header that begins with {known}, got {found} "
            "(of a file without a header say data.dtype=uint16 or uint32)"
        )
    version, kind = KINDS[magic]
    if header[1] != version:
        raise ValueError(
            f"paths: {path}: expected version {version} of a file with magic {magic}, "
            f"got {header[1]}"
        )
    shard = Shard(path, kind, HEADER_BYTES, int(header[2]))
    if shard.n_tokens < 1:
        raise ValueError(f"paths: {path}: expected tokens, the header says {header[2]}")
    if n_bytes != shard.n_bytes:
        raise ValueError(
            f"paths: {path}: its header says {shard.n_tokens} tokens of {kind.name}, "
            f"{shard.n_bytes} bytes in all, got {n_bytes} bytes"
        )
    return shard


def _without_header(path: Path, n_bytes: int, magic: int | None, dtype: str) -> Shard:
    if magic in KINDS:
        raise ValueError(
            f"dtype: {path} has a header, which says the type: leave data.dtype out"
        )
    kind = DTYPES[dtype]
    if n_bytes == 0:
        raise ValueError(f"paths: {path}: expected tokens, the file is empty")
    if n_bytes % kind.itemsize:
        raise ValueError(
            f"paths: {path}: expected a whole number of {dtype} ids, "
            f"{kind.itemsize} bytes each, got {n_bytes} bytes"
        )
    return Shard(path, kind, 0, n_bytes // kind.itemsize)


def write_shard(path: Path, tokens: np.ndarray) -> bytes:
    """Writes ids as a file with a header, whole or not at all; returns its bytes.

    Args:
        tokens: [n] of a type of `DTYPES`, which decides the header.

    Raises:
        ValueError: no token, or more than a header can count.
    """
    if not 1 <= len(tokens) <= MAX_TOKENS:
        raise ValueError(
            f"{path}: expected 1 to {MAX_TOKENS} tokens, got {len(tokens)}"
        )
    ((magic, version),) = (
        (m, v) for m, (v, kind) in KINDS.items() if kind == tokens.dtype
    )
    header = np.zeros(HEADER_BYTES // 4, "<i4")
    header[:3] = magic, version, len(tokens)
    content = header.tobytes() + tokens.tobytes()
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    return content
