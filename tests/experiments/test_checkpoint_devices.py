"""A checkpoint does not depend on how many devices wrote it, or read it."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from experiments.checkpoints import Checkpoints
from tests.launching import ROOT

# [rows, columns]: an array that is stored by itself, and one that is packed.
SHAPES = {"large": (1024, 512), "small": (8, 3)}


def make_state() -> dict:
    """Arrays cut into rows over all devices there are."""
    mesh = jax.make_mesh((jax.device_count(),), ("rows",))
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("rows"))
    rng = np.random.default_rng(0)
    return {
        name: jax.device_put(rng.normal(size=shape).astype(np.float32), rows)
        for name, shape in SHAPES.items()
    }


def read_all_and_write(folder: Path) -> None:
    """Compares what others wrote in `folder` with the state; prints a digest of ours."""
    state = make_state()
    for path in sorted(folder.iterdir()):
        (step, read), problems = Checkpoints(path, keep=1).restore(state)
        assert (step, problems) == (7, [])
        for name, x in read.items():
            assert len(x.sharding.device_set) == 1
            assert np.asarray(x).tobytes() == np.asarray(state[name]).tobytes()
    own = folder / f"of-{jax.device_count()}-{len(list(folder.iterdir()))}"
    print(jax.device_count(), Checkpoints(own, keep=1).save(7, state))


@pytest.mark.slow
def test_any_number_of_devices_reads_what_any_other_wrote(tmp_path):
    code = (
        "import pathlib, sys; "
        "from tests.experiments.test_checkpoint_devices import read_all_and_write; "
        "read_all_and_write(pathlib.Path(sys.argv[1]))"
    )
    digests = []
    for n in (4, 1, 2, 4):
        flags = f"--xla_force_host_platform_device_count={n}"
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path)],
            cwd=ROOT,
            env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        count, digest = done.stdout.split()
        assert int(count) == n
        digests.append(digest)
    assert len(list(tmp_path.iterdir())) == 4
    assert len(set(digests)) == 1
