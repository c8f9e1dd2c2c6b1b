"""A text of the user's own."""

import hashlib
from pathlib import Path

from experiments.data import text
from experiments.data.dataset import Dataset


class BytesFile:
    """Bytes of one file; the last part of it is the validation text.

    Args:
        path: the file, absolute, relative to the working folder, or from `~`.
        validation_fraction: share of the bytes at the end held out for validation,
            rounded down.
    """

    traced = ()

    @staticmethod
    def check(*, path: str | None = None, validation_fraction: float = 0.05) -> None:
        """Refuses a `path` that is missing, a folder, or too short to split."""
        text.check_validation_fraction(validation_fraction)
        if path is None:
            raise ValueError("path: expected the path of a text file, got null")
        file = Path(path).expanduser()
        if not file.exists():
            raise ValueError(f"path: no such file: {file.absolute()}")
        if not file.is_file():
            raise ValueError(f"path: expected a file, got a folder: {file}")
        _n_validation(file, file.stat().st_size, validation_fraction)

    def __init__(self, *, path: str | None = None, validation_fraction: float = 0.05):
        self.path = path
        self.validation_fraction = validation_fraction

    def load(self) -> Dataset:
        """Reads the file; raises as `check` does, if it has changed since."""
        self.check(path=self.path, validation_fraction=self.validation_fraction)
        file = Path(self.path).expanduser()
        content = file.read_bytes()
        cut = len(content) - _n_validation(file, len(content), self.validation_fraction)
        return text.text_dataset(
            content[:cut], content[cut:], hashlib.sha256(content).hexdigest()
        )

    def batch(self, arrays, key, *, split, batch_size, seq_len):
        """Random windows, int32 [batch_size, seq_len + 1]; see `text.window_batch`."""
        return text.window_batch(
            arrays, key, split=split, batch_size=batch_size, seq_len=seq_len
        )


def _n_validation(file: Path, n_bytes: int, fraction: float) -> int:
    """Bytes held out; refuses a file that leaves fewer than two on either side."""
    n_validation = int(n_bytes * fraction)
    if min(n_validation, n_bytes - n_validation) < 2:
        raise ValueError(
            f"path: {file} is too short: its {n_bytes} bytes with validation_fraction="
            f"{fraction} leave {n_bytes - n_validation} for training and "
            f"{n_validation} for validation, expected at least 2 each"
        )
    return n_validation
