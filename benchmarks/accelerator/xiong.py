"""The whole of experiment=xiong, as a user launches it."""

import subprocess
import sys
import tempfile
import time

from benchmarks.coordinator import ROOT

TINY = ("model.n_layers=6,12", "seed=0,1")


def measure(is_tiny: bool) -> dict[str, object]:
    """{"seconds": of the command with its report, nothing cached}

    Raises:
        RuntimeError: the command failed; with the end of what it said.
    """
    with tempfile.TemporaryDirectory() as work:
        command = [
            sys.executable,
            "launch.py",
            "experiment=xiong",
            f"runtime.output_dir={work}/outputs",
            f"runtime.compilation_cache={work}/cache",
            *(TINY if is_tiny else ()),
        ]
        start = time.perf_counter()
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        taken = time.perf_counter() - start
    if done.returncode:
        raise RuntimeError((done.stdout + done.stderr)[-2000:])
    return {"seconds": taken}
