"""What a folder of weights is, whatever its path: a digest of what is in it."""

import functools
import hashlib
import json
import pathlib

from blocks.families.fields import FamilyError
from experiments.errors import ConfigError

PIECE = 1024  # bytes read at the start, in the middle and at the end of each tensor


def fingerprint(path: str | pathlib.Path) -> str:
    """16 hex digits of a folder with config.json and safetensors, or of a run's.

    Of a checkpoint: its config, name, type, shape and place of every tensor, and three
    pieces of `PIECE` bytes of each. So it is cheap however large the files are, and a
    tensor that is changed between those pieces is not noticed. Of a run of ours: its
    config and the digest of its newest checkpoint.

    Raises:
        ConfigError: there is no such folder, or it is neither.
    """
    path = pathlib.Path(path)
    files = sorted(path.iterdir()) if path.is_dir() else []
    files += sorted(path.glob("checkpoints/*/meta/metadata"))
    stamps = [(str(f), f.stat().st_size, f.stat().st_mtime_ns) for f in files]
    return _fingerprint(path, tuple(stamps))


@functools.lru_cache(maxsize=64)
def _fingerprint(path: pathlib.Path, stamps: tuple) -> str:
    """Read again once a file of the folder has changed."""
    del stamps
    digest = hashlib.sha256()
    try:
        digest.update((path / "config.json").read_bytes())
        if is_run(path):
            step = newest(path)
            meta = path / "checkpoints" / str(step) / "meta" / "metadata"
            digest.update(json.loads(meta.read_bytes())["digest"].encode())
        else:
            _add_tensors(digest, path)
    except FamilyError as error:
        raise ConfigError(f"weights.path: {error}") from None
    except (OSError, ValueError, LookupError) as error:
        told = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"weights.path: {path} cannot be read ({told})") from None
    return digest.hexdigest()[:16]


def _add_tensors(digest, path: pathlib.Path) -> None:
    # Every start of a launch reads a config; few need the library for tensors.
    from blocks.families.files import Files

    files = Files(path)
    for name in sorted(files.names):
        file, offset, n_bytes = files.place(name)
        form = [name, str(files.dtype(name)), files.shape(name), file.name, offset]
        digest.update(json.dumps(form).encode())
        with file.open("rb", buffering=0) as opened:
            for start in (0, (n_bytes - PIECE) // 2, n_bytes - PIECE):
                opened.seek(offset + max(start, 0))
                digest.update(opened.read(min(PIECE, n_bytes)))


def is_run(path: pathlib.Path) -> bool:
    """Whether a folder is a run's and not a released model's."""
    return (path / "status.json").exists()


def newest(path: pathlib.Path) -> int:
    """The step of a run's newest checkpoint.

    Raises:
        ConfigError: it has none.
    """
    folder = path / "checkpoints"
    names = [p.name for p in folder.iterdir()] if folder.is_dir() else []
    steps = [int(name) for name in names if name.isdigit()]
    if not steps:
        raise ConfigError(f"weights.path: {path} has no checkpoint yet")
    return max(steps)
