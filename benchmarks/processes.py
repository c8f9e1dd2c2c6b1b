"""Whole processes, timed from outside: wall, CPU and peak memory."""

import concurrent.futures
import contextlib
import dataclasses
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence

from benchmarks.coordinator import ROOT


@dataclasses.dataclass(frozen=True)
class Finished:
    """Seconds of wall time and of CPU (children included), and its own peak memory.

    first_row, first_row_cpu: the same when `watch` had its first line; None without.
    """

    wall: float
    cpu: float
    peak_bytes: int
    output: str
    first_row: float | None = None
    first_row_cpu: float | None = None


@contextlib.contextmanager
def on_core(core: int | None):
    """This thread, and the processes it starts in here, keep to one core."""
    before = os.sched_getaffinity(0)
    if core is not None:
        os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def run(
    command: Sequence[str],
    *,
    core: int | None = None,
    watch: tuple[pathlib.Path, str] | None = None,
    expected_code: int = 0,
) -> Finished:
    """Runs a command to its end.

    Args:
        core: what it is pinned to, None for all cores.
        watch: folder and pattern of a file whose first line is waited for.

    Raises:
        RuntimeError: it ended with another code; the message has its last lines.
    """
    with tempfile.TemporaryFile("w+") as output:
        started = time.perf_counter()
        with on_core(core):
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
            )
        memory = _Peak(process.pid)
        first = (None, None)
        if watch is not None:
            first = _first_line(process, *watch, started)
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        text = output.read()
    if process.returncode != expected_code:
        last = "\n".join(text.strip().splitlines()[-5:])
        raise RuntimeError(
            f"{' '.join(map(str, command))}: ended with code {process.returncode}\n{last}"
        )
    return Finished(wall, usage.ru_utime + usage.ru_stime, memory.bytes, text, *first)


class _Peak(threading.Thread):
    """The peak resident memory of a living process, asked for every 10 ms.

    What wait4 tells is no use: a child starts with the peak of the process that made it.
    """

    def __init__(self, pid: int):
        super().__init__(daemon=True)
        self.bytes = 0
        self._status = pathlib.Path(f"/proc/{pid}/status")
        self.start()

    def run(self) -> None:
        with contextlib.suppress(OSError, StopIteration):
            while True:
                lines = self._status.read_text().splitlines()
                line = next(x for x in lines if x.startswith("VmHWM"))  # none: a zombie
                self.bytes = max(self.bytes, int(line.split()[1]) * 1024)
                time.sleep(0.01)


def _first_line(process, folder: pathlib.Path, pattern: str, started: float):
    """Wall and CPU seconds then; polls every 5 ms and reaps nothing."""
    while True:
        for path in folder.glob(pattern):
            if path.stat().st_size:
                return time.perf_counter() - started, cpu_so_far(process.pid)
        ended = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is not None:
            return None, None
        time.sleep(0.005)


def cpu_so_far(pid: int) -> float:
    """User and system seconds of a living process, as /proc counts them."""
    stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    fields = stat.rpartition(")")[2].split()  # a name may hold blanks and brackets
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run_all(commands: Sequence[Sequence[str]], at_once: int) -> tuple[float, float]:
    """Wall and CPU seconds of several commands, so many at once."""
    started = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        finished = list(pool.map(run, commands))
    return time.perf_counter() - started, sum(f.cpu for f in finished)


def launch(*overrides: str) -> list[str]:
    """The framework's own command with these arguments."""
    return [sys.executable, "launch.py", *overrides]
