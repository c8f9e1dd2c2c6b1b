"""A Parquet copy of the frames, valid only for exactly the files it was made from.

An entry is a folder named by a key over every file's path, size, time and inode, over
the code that builds the frames and over the Polars version. Its own files are checked
against digests before they are used. Anything unexpected means: build again.
"""

import contextlib
import hashlib
import io
import json
import os
import shutil
import tempfile
import time
from pathlib import Path

import polars as pl

from analysis.read_run import FILES

FOLDER = ".cache"
# A file may change twice within one tick of the file system's clock without a new
# time or size; as long as a file is that young, nothing is kept.
YOUNG_SECONDS = 1.0
_CODE = (
    "read_run.py",
    "variants.py",
    "provenance.py",
    "frames.py",
    "cache.py",
    "load.py",
)


def key_of(folders: list[Path]) -> tuple[str, float]:
    """Returns the key of these run folders and the age of the youngest file, in s."""
    digest = hashlib.sha256(pl.__version__.encode())
    for name in _CODE:
        digest.update((Path(__file__).parent / name).read_bytes())
    newest = 0
    for folder in folders:
        for name in FILES:
            try:
                stat = os.stat(folder / name)
            except OSError:
                continue
            facts = (folder.name, name, stat.st_size, stat.st_mtime_ns, stat.st_ino)
            digest.update(repr(facts).encode())
            newest = max(newest, stat.st_mtime_ns)
    return digest.hexdigest()[:32], time.time() - newest * 1e-9


def read(directory: Path, key: str, names: tuple[str, ...]):
    """Returns the frames of an intact entry as a dict, else None."""
    entry = directory / FOLDER / key
    try:
        digests = json.loads((entry / "digests.json").read_text())
        frames = {}
        for name in names:
            data = (entry / f"{name}.parquet").read_bytes()
            if hashlib.sha256(data).hexdigest() != digests[name]:
                return None
            frames[name] = pl.read_parquet(io.BytesIO(data))
    except (OSError, ValueError, KeyError, TypeError, pl.exceptions.PolarsError):
        return None
    return frames


def write(directory: Path, key: str, frames: dict[str, pl.DataFrame]) -> None:
    """Stores an entry in one rename and removes the older ones.

    A folder that cannot be written to (an archive, someone else's results) is read
    without a cache: speed is all that is lost.
    """
    home = directory / FOLDER
    with contextlib.suppress(OSError):
        home.mkdir(exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix="tmp-", dir=home))
        try:
            digests = {}
            for name, frame in frames.items():
                frame.write_parquet(temporary / f"{name}.parquet")
                data = (temporary / f"{name}.parquet").read_bytes()
                digests[name] = hashlib.sha256(data).hexdigest()
            (temporary / "digests.json").write_text(json.dumps(digests))
            shutil.rmtree(home / key, ignore_errors=True)  # a broken one, if any
            os.replace(temporary, home / key)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        _remove_old(home, key)


def _remove_old(home: Path, key: str) -> None:
    for entry in home.iterdir():
        is_entry = len(entry.name) == 32 and set(entry.name) <= set("0123456789abcdef")
        # Another process may be writing: its folder is left alone for an hour.
        is_left_over = (
            entry.name.startswith("tmp-") and time.time() - entry.stat().st_mtime > 3600
        )
        if entry.is_dir() and (is_left_over or (is_entry and entry.name != key)):
            shutil.rmtree(entry, ignore_errors=True)
