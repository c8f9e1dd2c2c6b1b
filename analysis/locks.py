"""The lock that a launcher holds on a run while it works on it.

It is `fcntl.flock` on `<run>/.lock`: free as soon as its process is gone, however it
went, so a file that is left behind says nothing.
"""

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

FILE = ".lock"


def is_held(folder: Path) -> bool:
    """Whether a process is at work on the run."""
    try:
        with (folder / FILE).open("rb") as file:
            # There is no asking without taking: shared, and let go of at once.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    return False


@contextlib.contextmanager
def hold(folder: Path) -> Iterator[bool]:
    """Keeps launchers off the run inside the block; yields False if one holds it."""
    with (folder / FILE).open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_ours = True
        except BlockingIOError:
            is_ours = False
        yield is_ours
