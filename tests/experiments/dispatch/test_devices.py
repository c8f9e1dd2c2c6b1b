"""One accelerator for each process."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from experiments.dispatch.devices import take_device, visible_devices

ROOT = Path(__file__).parents[3]

TAKE = """
import sys, pathlib
from experiments.dispatch.devices import take_device
print(take_device(["0", "1", "2", "3"], pathlib.Path(sys.argv[1])), flush=True)
assert "jax" not in sys.modules
import os; assert os.environ["CUDA_VISIBLE_DEVICES"] in "0123"
sys.stdin.read()
"""


def start(folder):
    return subprocess.Popen(
        [sys.executable, "-c", TAKE, str(folder)],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_processes_that_start_together_never_meet_on_a_device(tmp_path):
    for _ in range(3):
        workers = [start(tmp_path) for _ in range(4)]
        taken = [worker.stdout.readline().strip() for worker in workers]
        assert sorted(taken) == ["0", "1", "2", "3"]
        for worker in workers:
            worker.communicate("")
            assert worker.returncode == 0


def test_a_device_is_free_again_when_its_process_is_killed(tmp_path):
    workers = [start(tmp_path) for _ in range(4)]
    taken = {worker.stdout.readline().strip(): worker for worker in workers}
    late = start(tmp_path)
    time.sleep(0.3)
    taken["2"].kill()
    assert late.stdout.readline().strip() == "2"
    for worker in [*workers, late]:
        worker.communicate("")


def test_without_a_free_device_it_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    take_device(["0"], tmp_path)
    with pytest.raises(RuntimeError, match="devices 0: all taken"):
        take_device(["0"], tmp_path, timeout=0.1)


@pytest.mark.parametrize("named, found", [("", []), ("-1", []), ("2,5", ["2", "5"])])
def test_devices_are_those_that_cuda_is_told(monkeypatch, named, found):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    assert visible_devices() == found


def test_a_machine_without_a_driver_has_none(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setitem(os.environ, "PATH", "")
    assert visible_devices() == []
