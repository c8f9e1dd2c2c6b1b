"""A sweep that is killed again and again: nothing lost, nothing doubled, the same bits.

Kills hit the launcher, its workers, and a worker in the middle of a checkpoint. How many
is in CHAOS_KILLS (100 unless set), which moments in CHAOS_SEED.
"""

import contextlib
import os
import pathlib
import random
import signal
import subprocess
import time

import pytest

from tests.launching import SMALL, assert_same_results, launch, runs_below, start

KILLS = int(os.environ.get("CHAOS_KILLS", "100"))
SEED = int(os.environ.get("CHAOS_SEED", "0"))

SWEEP = (
    "-m",
    *SMALL,
    "norm=rmsnorm,derf,layernorm",
    "seed=range(0,20)",
    "steps=1500",
    "runtime.checkpoint.every=50",
    "task.probe_every=500",
)
N_RUNS = 60
PROCESSES = ("dispatch=processes", "runtime.dispatch.n_jobs=2")

# Kills a process in front of its n-th operation on a file of a checkpoint.
IN_A_SAVE = """
import itertools, os, signal, sys
at = int(os.environ.get("CHAOS_DIE_AT", "0"))
count = itertools.count(1)

def hook(event, arguments):
    if event not in ("open", "os.mkdir", "os.remove", "os.rename", "os.rmdir"):
        return
    if arguments and "/checkpoints" in str(arguments[0]) and next(count) == at:
        with open(os.environ["CHAOS_LOG"], "a") as log:
            log.write(f"{os.getpid()} {event} {arguments[0]}\\n")
        os.kill(os.getpid(), signal.SIGKILL)

if at:
    sys.addaudithook(hook)
"""


def children_of(pid: int) -> list[int]:
    """Processes that came from `pid`, as the system knows them now."""
    found = []
    for status in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            text = status.read_text()
            if int(text.rsplit(")", 1)[1].split()[1]) == pid:
                found.append(int(status.parent.name))
    return found


def kill(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
        return True
    return False


class Chaos:
    """Launches, kills and counts."""

    def __init__(self, cwd: pathlib.Path, seed: int):
        self.cwd = cwd
        self.random = random.Random(seed)
        self.log = cwd / "in_a_save.log"
        self.hooks = cwd / "hooks"
        self.hooks.mkdir()
        (self.hooks / "sitecustomize.py").write_text(IN_A_SAVE)
        self.others = 0

    @property
    def in_a_save(self) -> int:
        return len(self.log.read_text().splitlines()) if self.log.exists() else 0

    @property
    def kills(self) -> int:
        return self.in_a_save + self.others

    @property
    def is_enough(self) -> bool:
        """So many kills, a fifth of them in the middle of a save."""
        return self.kills >= KILLS and self.in_a_save >= KILLS / 5

    def round(self) -> bool:
        """One launch that is killed; False once the sweep has come to its end."""
        env = {}
        if self.in_a_save < KILLS / 5 or self.random.random() < 0.25:
            env = {
                "PYTHONPATH": str(self.hooks),
                "CHAOS_DIE_AT": str(self.random.randint(1, 200)),
                "CHAOS_LOG": str(self.log),
            }
        process = start(*SWEEP, *PROCESSES, cwd=self.cwd, **env)
        try:
            if self.random.random() < 0.8:  # else maybe before a run has begun
                self._until_it_works(process)
            self._wait(process, self.random.uniform(0.2, 6))
            if process.poll() is None and self.random.random() < 0.5:
                self.others += self._kill_a_worker(process.pid)
                self._wait(process, self.random.uniform(0.5, 3))
            if process.poll() is not None:
                return process.returncode != 0
            workers = children_of(process.pid)
            self.others += kill(process.pid)
            for worker in workers:  # as if the machine had gone
                self.others += kill(worker)
            return True
        finally:
            process.communicate()

    def _kill_a_worker(self, pid: int) -> bool:
        workers = children_of(pid)
        return bool(workers) and kill(self.random.choice(workers))

    def _until_it_works(self, process: subprocess.Popen) -> None:
        """Until a run is at work: how long that takes is the machine's affair."""
        begun = time.time()
        files = (self.cwd / "outputs/train").glob
        while process.poll() is None and time.time() < begun + 120:
            times = []
            for path in files("*/status.json"):
                with contextlib.suppress(OSError):  # a file is being replaced
                    times.append(path.stat().st_mtime)
            if times and max(times) > begun:
                return
            time.sleep(0.1)

    @staticmethod
    def _wait(process: subprocess.Popen, seconds: float) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)


@pytest.mark.slow
def test_a_sweep_comes_through(tmp_path):
    quiet, wild = tmp_path / "quiet", tmp_path / "wild"
    quiet.mkdir()
    wild.mkdir()
    done = launch(*SWEEP, cwd=quiet, timeout=1800)
    assert done.returncode == 0, done.stderr

    chaos = Chaos(wild, SEED)
    while not chaos.is_enough and chaos.round():
        time.sleep(0.1)
    assert chaos.is_enough, f"over after {chaos.kills} kills: give it more steps"

    done = launch(*SWEEP, *PROCESSES, cwd=wild, timeout=1800)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(runs_below(quiet / "outputs/train")) == N_RUNS
    assert_same_results(quiet / "outputs/train", wild / "outputs/train")
