"""The tensors of safetensors files, read one at a time."""

import dataclasses
import json
import mmap
import pathlib
from collections.abc import Iterable

import jax.numpy as jnp
import numpy as np
from safetensors import safe_open

from blocks.families.fields import FamilyError

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
# Types of safetensors files as numpy has them.
DTYPES = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": jnp.bfloat16,
    "F8_E4M3": jnp.float8_e4m3fn,
    "F8_E5M2": jnp.float8_e5m2,
    "I64": np.int64,
    "I32": np.int32,
    "I16": np.int16,
    "I8": np.int8,
    "U8": np.uint8,
    "BOOL": np.bool_,
}


class Files:
    """The tensors of a checkpoint, in one file or several.

    source: a folder with model.safetensors or its index, a file, or several files.
    names: tensor -> file.

    Raises:
        FamilyError: there is no such file, or it is no safetensors file.
    """

    def __init__(self, source: str | pathlib.Path | Iterable[str | pathlib.Path]):
        several = not isinstance(source, (str, pathlib.Path))
        paths = [pathlib.Path(p) for p in source] if several else _paths(source)
        self.source = ", ".join(map(str, paths)) if several else str(source)
        self.names: dict[str, pathlib.Path] = {}
        self._map: mmap.mmap | None = None
        self._headers: dict[pathlib.Path, dict[str, Entry]] = {}
        for path in paths:
            try:
                with safe_open(path, framework="np"):  # checks sizes and offsets
                    pass
            except Exception as error:  # the library has no type of its own for all
                raise FamilyError(f"{path}: not a safetensors file ({error})") from None
            self._headers[path] = header(path)
            self.names |= dict.fromkeys(self._headers[path], path)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._entry(name).shape

    def dtype(self, name: str) -> np.dtype:
        return self._entry(name).dtype

    def place(self, name: str) -> tuple[pathlib.Path, int, int]:
        """File, offset and number of bytes of a tensor."""
        entry = self._entry(name)
        return self.names[name], entry.offset, entry.n_bytes

    def read(self, name: str) -> np.ndarray:
        """A tensor as the pages of its file.

        Pages that were touched count as memory of the process until `let_go`, or until
        the next tensor is read; the library's own reader would keep them all.
        """
        entry = self._entry(name)
        if not entry.n_bytes:
            return np.empty(entry.shape, entry.dtype)
        with self.names[name].open("rb") as file:
            start = entry.offset % mmap.ALLOCATIONGRANULARITY
            self._map = mmap.mmap(
                file.fileno(),
                start + entry.n_bytes,
                access=mmap.ACCESS_READ,
                offset=entry.offset - start,
            )
        raw = np.frombuffer(self._map, np.uint8, entry.n_bytes, start)
        return raw.view(entry.dtype).reshape(entry.shape)

    def let_go(self) -> None:
        """Gives back the pages of the tensor that was read last; it can still be read."""
        if self._map is not None and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)

    def _entry(self, name: str) -> "Entry":
        return self._headers[self.names[name]][name]


@dataclasses.dataclass(frozen=True)
class Entry:
    """A tensor of a safetensors file: type, shape, where its bytes are."""

    dtype: np.dtype
    shape: tuple[int, ...]
    offset: int
    n_bytes: int


def header(path: pathlib.Path) -> dict[str, Entry]:
    """Tensor -> where it is, of a file that the library has found to be whole.

    Raises:
        FamilyError: a type that numpy does not have.
    """
    with path.open("rb") as file:
        n = int.from_bytes(file.read(8), "little")
        node = json.loads(file.read(n))
    entries = {}
    for name, of in node.items():
        if name == "__metadata__":
            continue
        first, last = of["data_offsets"]
        if of["dtype"] not in DTYPES:
            raise FamilyError(
                f"{path}: {name} is of type {of['dtype']}, expected one of "
                f"{', '.join(DTYPES)}"
            )
        dtype = np.dtype(DTYPES[of["dtype"]])
        entries[name] = Entry(dtype, tuple(of["shape"]), 8 + n + first, last - first)
    return entries


def _paths(source: str | pathlib.Path) -> list[pathlib.Path]:
    path = pathlib.Path(source).expanduser()
    if not path.is_dir():
        return [path]
    index = path / INDEX
    if not index.exists():
        if not (path / SINGLE).exists():
            raise FamilyError(f"{path}: expected {SINGLE} or {INDEX} in this folder")
        return [path / SINGLE]
    try:
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        return [path / file for file in sorted(set(weight_map.values()))]
    except (ValueError, KeyError, AttributeError):
        raise FamilyError(
            f"{index}: expected a weight_map of tensors to files"
        ) from None
