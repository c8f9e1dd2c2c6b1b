"""Paths and patterns of a config, as files."""

import collections
import glob
from pathlib import Path

from experiments.errors import nearest


def files_of(paths: str | tuple | None, key: str = "paths") -> list[Path]:
    """The files that paths and patterns name, those of a pattern in order of name.

    A path may be relative to the working folder, or begin with `~`.

    Raises:
        ValueError: nothing given, a missing file or a folder, a pattern without a match,
            or a file named twice.
    """
    given = (paths,) if isinstance(paths, str) else paths or ()
    if not given:
        raise ValueError(
            f"{key}: expected a path, a pattern or a list of them, got null"
        )
    found = []
    for path in given:
        if not isinstance(path, str):
            raise ValueError(f"{key}: expected paths, got {path!r}")
        file = Path(path).expanduser()
        if file.exists() or not glob.has_magic(path):
            found.append(_existing(file, key))
            continue
        matches = [Path(name) for name in sorted(glob.glob(str(file), recursive=True))]
        matches = [match for match in matches if match.is_file()]
        if not matches:
            raise ValueError(f"{key}: no file matches {file.absolute()}")
        found += matches
    twice = [file for file, n in collections.Counter(found).items() if n > 1]
    if twice:
        raise ValueError(f"{key}: {twice[0]} is named twice")
    return found


def _existing(file: Path, key: str) -> Path:
    if not file.exists():
        beside = file.parent.iterdir() if file.parent.is_dir() else ()
        hint = nearest(file.name, [other.name for other in beside])
        raise ValueError(f"{key}: no such file: {file.absolute()}{hint}")
    if not file.is_file():
        raise ValueError(
            f"{key}: expected a file, got a folder: {file} (its files: {file}/*)"
        )
    return file
