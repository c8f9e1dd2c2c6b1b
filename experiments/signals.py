"""Signals that ask for every run to be saved."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator

# The last two are what schedulers send some time before they take a job away
# (`sbatch --signal=B:USR1@120`).
ASKED = (signal.SIGINT, signal.SIGTERM)
WARNED = (signal.SIGUSR1, signal.SIGUSR2)


class Stopped(KeyboardInterrupt):
    """A signal came and every run was saved."""

    def __init__(self, number: int = signal.SIGINT):
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number  # as a shell has it


@contextlib.contextmanager
def calling(handle: Callable[[int, object], None]) -> Iterator[None]:
    """In here `handle(number, frame)` is called for each of these signals.

    One of `WARNED` that something else waits for already (submitit, in its jobs) is left
    to it. The main thread alone may set handlers; elsewhere (a notebook's worker, say)
    signals are left as they are.
    """
    before = {}
    if threading.current_thread() is threading.main_thread():
        free = [n for n in WARNED if signal.getsignal(n) is signal.SIG_DFL]
        before = {n: signal.signal(n, handle) for n in (*ASKED, *free)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
