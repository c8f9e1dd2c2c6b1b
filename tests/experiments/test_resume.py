"""kill -9 in the middle, the same command again: the same numbers to the last bit."""

import signal
import time

import pytest

from tests.launching import (
    SMALL,
    assert_same_results,
    launch,
    rows,
    runs_below,
    start,
    status,
)

LONG = (*SMALL, "steps=3000", "runtime.checkpoint.every=200", "task.probe_every=1000")


def kill_in_the_middle(*arguments, cwd, after: int) -> None:
    """Starts a launch and kills it once some run has a checkpoint and is past `after`."""
    process = start(*arguments, cwd=cwd)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        assert process.poll() is None, "ended before it could be killed"
        for run in runs_below(cwd / "outputs/train").values():
            metrics = run / "metrics.jsonl"
            saved = any(run.glob("checkpoints/[0-9]*"))
            if (
                saved
                and metrics.exists()
                and metrics.read_text().count("\n") * 10 > after
            ):
                process.send_signal(signal.SIGKILL)
                process.communicate()
                return
        time.sleep(0.01)
    process.kill()
    raise AssertionError("no run got far enough in two minutes")


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """A group of three, never interrupted; the run with seed 0 is also the lone one."""
    cwd = tmp_path_factory.mktemp("uninterrupted")
    done = launch("-m", *LONG, "seed=0,1,2", cwd=cwd)
    assert done.returncode == 0, done.stderr
    return cwd


def test_a_lone_run_continues_bit_for_bit(uninterrupted, tmp_path):
    command = (*LONG, "seed=0")
    kill_in_the_middle(*command, cwd=tmp_path, after=500)
    (run,) = runs_below(tmp_path / "outputs/train").values()
    before = status(run)
    assert before["state"] == "running"
    assert 200 <= before["step"] < 3000

    done = launch(*command, cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    assert "continued from step" in done.stdout
    assert status(run)["attempt"] == 2
    whole = runs_below(uninterrupted / "outputs/train")[run.name[-12:]]
    assert rows(run) == rows(whole)
    assert rows(run, "probes.jsonl") == rows(whole, "probes.jsonl")
    assert status(run)["params_digest"] == status(whole)["params_digest"]


def test_a_group_continues_bit_for_bit(uninterrupted, tmp_path):
    command = ("-m", *LONG, "seed=0,1,2")
    kill_in_the_middle(*command, cwd=tmp_path, after=1200)
    done = launch(*command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert_same_results(tmp_path / "outputs/train", uninterrupted / "outputs/train")

    stamps = {
        run: (run / "metrics.jsonl").stat().st_mtime_ns
        for run in runs_below(tmp_path / "outputs/train").values()
    }
    again = launch(*command, cwd=tmp_path)
    assert again.returncode == 0
    assert "3 finished before" in again.stdout
    for run, stamp in stamps.items():
        assert (run / "metrics.jsonl").stat().st_mtime_ns == stamp


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2]
)
def test_a_signal_saves_and_the_same_command_continues(uninterrupted, tmp_path, number):
    command = (*LONG, "seed=1")
    process = start(*command, cwd=tmp_path)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        found = list(runs_below(tmp_path / "outputs/train").values())
        if found and (found[0] / "metrics.jsonl").exists():
            break
        time.sleep(0.01)
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 128 + number
    assert "every run under way is being saved" in out
    assert "the same command continues" in err
    (run,) = runs_below(tmp_path / "outputs/train").values()
    assert status(run)["state"] == "preempted"

    done = launch(*command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    whole = runs_below(uninterrupted / "outputs/train")[run.name[-12:]]
    assert rows(run) == rows(whole)
    assert status(run)["params_digest"] == status(whole)["params_digest"]
