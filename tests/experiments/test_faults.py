"""Killed in the middle of a save, and on disks that are full: nothing whole is lost."""

import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import numpy as np
import pytest

from experiments import checkpoints as module
from experiments.checkpoints import Checkpoints
from experiments.errors import UserError
from experiments.run import DiskError
from tests.launching import ROOT, SMALL, assert_same_results, launch, runs_below, status

# Operations on files of which Python tells its audit hooks.
OPERATIONS = {"open", "os.mkdir", "os.remove", "os.rename", "os.rmdir"}

NO_SPACE = (
    "no space left on the device; what was written before is kept, the same command "
    "continues"
)

# A failed save or restore leaves a future of Orbax's that complains when collected.
pytestmark = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)


def make_state(step: int, size: int = 300_000) -> dict:
    rng = np.random.default_rng(step)
    return {
        "large": rng.normal(size=size).astype(np.float32),
        "small": np.float32([step]),
    }


def assert_is_state_of(step: int, state: dict, size: int = 300_000) -> None:
    for name, x in make_state(step, size).items():
        assert np.asarray(state[name]).tobytes() == x.tobytes()


# -- cuts ----------------------------------------------------------------------


def die_at(n: int) -> None:
    """Kills this process in front of its n-th operation on a file from here on."""
    count = itertools.count(1)

    def hook(event, _):
        if event in OPERATIONS and next(count) == n:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def forked(work, wait: float | None = None) -> int:
    """Exit code of `work` in a copy of this process, killed after `wait` seconds."""
    pid = os.fork()
    if pid == 0:
        work()
        os._exit(0)
    if wait is not None:
        time.sleep(wait)
        os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def prepare(folder: Path) -> Path:
    """Steps 10 and 20, and what a cut removal left of step 30."""
    before = folder / "before"

    def save():
        for step in (10, 20):
            Checkpoints(before, keep=2).save(step, make_state(step))
        shutil.copytree(before / "20", before / "30")
        shutil.rmtree(before / "30/state")

    assert forked(save) == 0
    return before


def cut_at_operations(folder: Path, first: int, every: int) -> None:
    """Kills saves of step 30 at operations first, first + every, ... until one is done.

    In a process of its own, where nothing of JAX runs yet: it must fork.
    """
    module._orbax()
    before = prepare(folder)
    for n in itertools.count(first, every):
        copy = folder / f"cut-{n}"
        shutil.copytree(before, copy)

        def save(copy=copy, n=n):
            die_at(n)
            Checkpoints(copy, keep=1).save(30, make_state(30))

        code = forked(save)
        assert code in (0, -signal.SIGKILL)
        if code == 0:
            return


def cut_at_times(folder: Path, times: list[float]) -> None:
    """Kills processes that save steps 30, 40, ... after some seconds."""
    module._orbax()
    before = prepare(folder)
    for n, seconds in enumerate(times):
        copy = folder / f"cut-{n}"
        shutil.copytree(before, copy)

        def save(copy=copy):
            for step in itertools.count(30, 10):
                Checkpoints(copy, keep=1).save(step, make_state(step))

        assert forked(save, wait=seconds) == -signal.SIGKILL


def in_another_process(call: str, folder: Path) -> list[Path]:
    """The folders that `call` of this module leaves in `folder`."""
    code = f"from tests.experiments.test_faults import *; {call}"
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return sorted(folder.glob("cut-*"))


def step_after_the_cut(folder: Path) -> int:
    """The step that is left, after looking at all that must hold."""
    checkpoints = Checkpoints(folder, keep=1)
    (step, state), problems = checkpoints.restore(make_state(0))
    assert_is_state_of(step, state)
    assert all(" is damaged (" in p for p in problems)
    checkpoints.save(step + 10, make_state(step + 10))
    assert [p.name for p in folder.iterdir()] == [str(step + 10)]
    assert checkpoints.restore(make_state(0))[1] == []
    return step


@pytest.mark.parametrize(
    "first, every", [(4, 8), pytest.param(1, 1, marks=pytest.mark.slow)]
)
def test_a_save_that_is_killed_at_any_operation_costs_nothing(tmp_path, first, every):
    call = f"cut_at_operations(Path(sys.argv[1]), {first}, {every})"
    steps = [step_after_the_cut(p) for p in in_another_process(call, tmp_path)]
    assert len(steps) >= 40 // every
    assert steps.count(20) > 1  # cut before the step had its name
    assert steps.count(30) > 1  # and while older ones were being removed


@pytest.mark.slow
def test_a_save_that_is_killed_at_any_time_costs_nothing(tmp_path):
    """Also inside the native code that writes arrays."""
    times = np.random.default_rng(0).uniform(0.1, 1.5, size=15)
    call = f"cut_at_times(Path(sys.argv[1]), {times.tolist()})"
    steps = [step_after_the_cut(p) for p in in_another_process(call, tmp_path)]
    assert len(steps) == 15
    assert min(steps) >= 20
    assert len(set(steps)) > 2


# -- a full disk under Orbax ---------------------------------------------------


class Unlucky:
    """A writer of Orbax's that leaves half a folder and fails."""

    def __init__(self, error: Exception):
        self.error = error

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def save(self, path, args):
        half = path.with_name(f"{path.name}.orbax-checkpoint-tmp")
        half.mkdir(parents=True)
        (half / "array").write_text("half")
        raise self.error


NATIVE = "RESOURCE_EXHAUSTED: Failed to write: No space left [os_error_code='28']\nmore"


@pytest.mark.parametrize(
    "error, words",
    [
        (OSError(28, "No space left on device"), NO_SPACE),
        (ValueError(NATIVE), NO_SPACE),
        (OSError(30, "Read-only file system"), "cannot write there (Read-only file"),
    ],
)
def test_a_save_that_fails_is_told_and_leaves_no_half(
    tmp_path, monkeypatch, error, words
):
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=1)
    checkpoints.save(10, make_state(10))
    with monkeypatch.context() as patch:
        patch.setattr(module._orbax(), "Checkpointer", lambda _: Unlucky(error))
        with pytest.raises(DiskError) as told:
            checkpoints.save(20, make_state(20))
    assert str(told.value).startswith(f"{tmp_path / 'checkpoints/20'}: {words}")
    assert "\n" not in str(told.value)
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == ["10"]
    (step, state), problems = checkpoints.restore(make_state(0))
    assert (step, problems) == (10, [])
    assert_is_state_of(10, state)


def test_a_fault_of_the_code_is_not_blamed_on_the_disk(tmp_path, monkeypatch):
    error = KeyError("a mistake")
    monkeypatch.setattr(module._orbax(), "Checkpointer", lambda _: Unlucky(error))
    with pytest.raises(KeyError):
        Checkpoints(tmp_path / "checkpoints", keep=1).save(20, make_state(20))
    assert list((tmp_path / "checkpoints").iterdir()) == []


def test_only_late_answers_of_a_failed_save_go_untold():
    heard = []
    hook = module._without_late_answers(lambda told: heard.append(str(told.exc_value)))
    for error in (
        RuntimeError(module.LATE_ANSWER),
        RuntimeError("another"),
        ValueError(module.LATE_ANSWER),
    ):
        hook(types.SimpleNamespace(exc_value=error))
    assert heard == ["another", module.LATE_ANSWER]


# -- real small disks ----------------------------------------------------------


def mount(*options: str, at: Path) -> subprocess.CompletedProcess:
    return subprocess.run(
        ["mount", "-t", "tmpfs", "-o", ",".join(options), "tmpfs", str(at)],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 512 KiB."""
    path = tmp_path / "disk"
    path.mkdir()
    if shutil.which("mount") is None:
        pytest.skip("no `mount` here")
    done = mount("size=512k", at=path)
    if done.returncode != 0:
        pytest.skip(f"no file system can be mounted here ({done.stderr.strip()})")
    try:
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=True)


@pytest.mark.slow
def test_a_checkpoint_too_large_for_the_disk_leaves_the_ones_before(small_disk, caplog):
    checkpoints = Checkpoints(small_disk / "checkpoints", keep=2)
    checkpoints.save(10, make_state(10, 50_000))
    for _ in range(2):
        with pytest.raises(DiskError) as error:
            checkpoints.save(20, make_state(20, 300_000))
        assert str(error.value) == f"{small_disk / 'checkpoints/20'}: {NO_SPACE}"
        assert [p.name for p in (small_disk / "checkpoints").iterdir()] == ["10"]
    assert caplog.records == []  # Orbax does not add tracebacks of its own
    (step, state), problems = checkpoints.restore(make_state(0, 50_000))
    assert (step, problems) == (10, [])
    assert_is_state_of(10, state, 50_000)


@pytest.mark.slow
def test_a_disk_that_may_only_be_read_is_told(small_disk):
    checkpoints = Checkpoints(small_disk / "checkpoints", keep=2)
    checkpoints.save(10, make_state(10, 1000))
    assert mount("remount,ro", at=small_disk).returncode == 0
    with pytest.raises(
        UserError, match=r"/20: cannot write there \(Read-only file sys"
    ):
        checkpoints.save(20, make_state(20, 1000))
    (step, _), problems = checkpoints.restore(make_state(0, 1000))
    assert (step, problems) == (10, [])


@pytest.mark.slow
def test_a_run_whose_disk_fills_up_continues_bit_for_bit(small_disk, tmp_path):
    """Rows of every step fill it; then it is made larger."""
    command = (*SMALL, "steps=3000", "log_every=1", "runtime.checkpoint.every=100")
    (tmp_path / "roomy").mkdir()
    whole = launch(*command, cwd=tmp_path / "roomy")
    assert whole.returncode == 0, whole.stderr

    full = launch(*command, cwd=small_disk)

    assert full.returncode != 0
    assert NO_SPACE in full.stdout + full.stderr
    assert "Traceback" not in full.stdout + full.stderr
    (run,) = runs_below(small_disk / "outputs/train").values()
    assert status(run)["state"] in ("failed", "running")
    assert (run / "metrics.jsonl").read_bytes().endswith(b"}\n")
    assert status(run)["step"] > 0

    assert mount("remount,size=64m", at=small_disk).returncode == 0
    done = launch(*command, cwd=small_disk)

    assert done.returncode == 0, done.stderr
    assert "continued from step" in done.stdout
    assert_same_results(small_disk / "outputs/train", tmp_path / "roomy/outputs/train")
