"""The bytes every peer trains on: one file, made once per command."""

import pathlib
import sysconfig

import numpy as np

N_BYTES = 2_000_000
TRAIN_FRACTION = 0.95  # the framework keeps the rest for validation


def write_text(path: pathlib.Path, n_bytes: int = N_BYTES) -> pathlib.Path:
    """Writes the first `n_bytes` of the running Python's standard library, by name.

    Raises:
        ValueError: the library is not installed as source files.
    """
    left = n_bytes
    with path.open("wb") as out:
        for source in sorted(pathlib.Path(sysconfig.get_path("stdlib")).glob("*.py")):
            left -= out.write(source.read_bytes()[:left])
            if not left:
                return path
    raise ValueError(
        f"text: expected {n_bytes} bytes of *.py files in the standard library, "
        f"got {n_bytes - left}"
    )


class Windows:
    """Random windows of the training part, cut on the host: int64 [batch, seq + 1].

    What a peer without batches of its own is fed with.
    """

    def __init__(self, path: str, batch_size: int, seq_len: int, seed: int = 0):
        text = np.fromfile(path, np.uint8)
        self.text = text[: int(text.size * TRAIN_FRACTION)]
        self.shape = (batch_size, seq_len + 1)
        self.random = np.random.default_rng(seed)

    def next(self) -> np.ndarray:
        batch, width = self.shape
        starts = self.random.integers(0, self.text.size - width + 1, batch)
        return self.text[starts[:, None] + np.arange(width)].astype(np.int64)
