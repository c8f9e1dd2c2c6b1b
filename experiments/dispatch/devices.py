"""One accelerator for each process of a machine. Imports no JAX: it comes before it."""

import fcntl
import os
import pathlib
import subprocess
import tempfile
import time

_leases = []  # open for as long as the process lives


def visible_devices() -> list[str]:
    """Ids of the GPUs that this process may use; none on a machine without."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [d for d in named.split(",") if d.strip() and d.strip() != "-1"]
    try:
        done = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return []
    lines = [line for line in done.stdout.splitlines() if line.startswith("GPU ")]
    return [str(i) for i in range(len(lines))]


def take_device(
    devices: list[str], folder: pathlib.Path | None = None, timeout: float = 60.0
) -> str:
    """Keeps one of the devices for this process until it ends, and shows JAX no other.

    A lease is a lock on a file of the machine, so that processes of different launchers
    never meet on a device; the kernel lets go of it with the process.

    Raises:
        RuntimeError: all are taken for longer than `timeout` seconds.
    """
    folder = folder or pathlib.Path(tempfile.gettempdir()) / f"blocklab-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    give_up = time.monotonic() + timeout
    while True:
        for device in devices:
            lease = (folder / f"device-{device}.lock").open("w")
            try:
                fcntl.flock(lease, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                lease.close()
                continue
            _leases.append(lease)
            os.environ["CUDA_VISIBLE_DEVICES"] = device
            return device
        if time.monotonic() > give_up:
            raise RuntimeError(f"devices {', '.join(devices)}: all taken by others")
        time.sleep(0.2)
