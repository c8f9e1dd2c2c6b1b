"""Text that every Python carries: the source of its own standard library."""

import hashlib
import os
import sysconfig
from pathlib import Path

from experiments.data import text
from experiments.data.dataset import Dataset

# Tests are long tables of cases; the rest is not part of the library.
SKIPPED_FOLDERS = frozenset(
    {
        "__pycache__",
        "dist-packages",
        "idle_test",
        "lib-dynload",
        "site-packages",
        "test",
        "tests",
    }
)
# Generated: flags and paths of the machine that built this Python. The topics are read
# as prose instead of as a dictionary of string literals.
SKIPPED_FILES = ("_sysconfigdata", "pydoc_data/topics.py")


class Stdlib:
    """Bytes of the running Python's library: about 11 MB of code, 0.5 MB of prose.

    Pieces are the `.py` files below the library folder, without tests and installed
    packages, and the help topics of `pydoc_data`. Whole pieces go to training or
    validation, by a hash of their name, so that neither holds the other half of a file;
    inside a split they stand in order of name, joined by a newline. Another Python
    version has other text, and another fingerprint.

    Args:
        validation_fraction: expected share of the pieces held out for validation.
        max_bytes: take pieces, in an order given by another hash, while they fit;
            None takes all.
    """

    traced = ()

    @staticmethod
    def check(
        *, validation_fraction: float = 0.05, max_bytes: int | None = None
    ) -> None:
        """Refuses a fraction outside (0, 1) and a limit below one byte."""
        text.check_validation_fraction(validation_fraction)
        if max_bytes is not None and max_bytes < 1:
            raise ValueError(f"max_bytes: expected null or at least 1, got {max_bytes}")

    def __init__(
        self, *, validation_fraction: float = 0.05, max_bytes: int | None = None
    ):
        self.validation_fraction = validation_fraction
        self.max_bytes = max_bytes

    def load(self) -> Dataset:
        """Reads the library.

        Raises:
            ValueError: a split is empty (a limit or fraction too small, or a Python
                installed without its sources).
        """
        pieces = library_pieces()
        if self.max_bytes is not None:
            pieces = _first_that_fit(pieces, self.max_bytes)
        train, validation = split_by_name(pieces, self.validation_fraction)
        if not (train and validation):
            raise ValueError(
                f"data.max_bytes={self.max_bytes}, data.validation_fraction="
                f"{self.validation_fraction}: expected pieces for training and for "
                f"validation, got {len(train)} and {len(validation)} of the library in "
                f"{sysconfig.get_path('stdlib')}"
            )
        return text.text_dataset(
            b"\n".join(train.values()),
            b"\n".join(validation.values()),
            fingerprint(pieces),
        )

    def batch(self, arrays, key, *, split, batch_size, seq_len):
        """Random windows, int32 [batch_size, seq_len + 1]; see `text.window_batch`."""
        return text.window_batch(
            arrays, key, split=split, batch_size=batch_size, seq_len=seq_len
        )


def library_pieces() -> dict[str, bytes]:
    """Name -> content, sorted by name: relative paths with `/`, and `topics/<name>`."""
    root = Path(sysconfig.get_path("stdlib"))
    pieces = {}
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name not in SKIPPED_FOLDERS]
        for file in files:
            path = Path(folder, file)
            name = path.relative_to(root).as_posix()
            if file.endswith(".py") and not name.startswith(SKIPPED_FILES):
                pieces[name] = path.read_bytes()
    from pydoc_data import topics  # 0.6 MB of literals: only when the data is loaded

    for name, prose in topics.topics.items():
        pieces[f"topics/{name}"] = prose.encode()
    return dict(sorted(pieces.items()))


def split_by_name(pieces: dict, fraction: float) -> tuple[dict, dict]:
    """Training and validation pieces; a piece keeps its side whatever others exist."""
    held_out = {name for name in pieces if _uniform(name, 0) < fraction}
    train = {name: piece for name, piece in pieces.items() if name not in held_out}
    return train, {name: pieces[name] for name in pieces if name in held_out}


def fingerprint(pieces: dict[str, bytes]) -> str:
    """sha256 over names and contents, with lengths so that no two sets look alike."""
    digest = hashlib.sha256()
    for name, piece in sorted(pieces.items()):
        for part in (name.encode(), piece):
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(part)
    return digest.hexdigest()


def _first_that_fit(pieces: dict[str, bytes], max_bytes: int) -> dict[str, bytes]:
    chosen, size = set(), 0
    for name in sorted(pieces, key=lambda name: _uniform(name, 1)):
        size += len(pieces[name])
        if size > max_bytes:
            break
        chosen.add(name)
    return {name: piece for name, piece in pieces.items() if name in chosen}


def _uniform(name: str, i: int) -> float:
    """The i-th of four numbers in [0, 1) that the name alone decides."""
    digest = hashlib.sha256(name.encode()).digest()
    return int.from_bytes(digest[8 * i : 8 * i + 8], "big") / 2**64
