"""What a run was made with: versions, devices, code revision; and process-wide setup."""

import contextlib
import functools
import hashlib
import importlib
import importlib.metadata
import logging
import os
import pathlib
import platform
import subprocess
from typing import Any

import jax

# Distribution -> its module. That of Orbax takes a third of a second to import, so its
# version is read from the distribution's files, which takes a sixtieth.
PACKAGES = {
    "jax": "jax",
    "jaxlib": "jaxlib",
    "flax": "flax",
    "optax": "optax",
    "orbax-checkpoint": None,
    "hydra-core": "hydra",
    "numpy": "numpy",
}


def set_up(compilation_cache: str | None, *, on_devices: bool = True) -> None:
    """Turns on the persistent compilation cache and quietens JAX's start-up.

    JAX by default caches no program that compiles in under a second; small ones are
    most of what runs here. Must be called before the first compilation.

    Args:
        compilation_cache: a folder, `auto` for the user's cache folder, None for off.
        on_devices: False leaves accelerators to other processes; no effect once JAX has
            taken them.
    """
    logging.getLogger("jax").setLevel(logging.WARNING)
    if not on_devices:
        jax.config.update("jax_platforms", "cpu")
    if compilation_cache is None:
        return
    if compilation_cache == "auto":
        base = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
        compilation_cache = os.environ.get("JAX_COMPILATION_CACHE_DIR") or str(
            pathlib.Path(base) / "blocklab" / "programs"
        )
    jax.config.update("jax_compilation_cache_dir", compilation_cache)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def available_cores() -> int:
    """Cores this process may use; all of the machine's where that is not known (macOS)."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def free_memory(gib: float | None = None) -> float:
    """Bytes that programs may take: `gib` if given, else what the device has free.

    On a CPU the machine's available memory, or what is left of the cgroup's limit.
    """
    if gib is not None:
        return gib * 2**30
    stats = jax.local_devices()[0].memory_stats() or {}
    if "bytes_limit" in stats:
        return stats["bytes_limit"] - stats.get("bytes_in_use", 0)
    free = float("inf")
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = pathlib.Path("/proc/meminfo").read_text().splitlines()
        line = next(line for line in lines if line.startswith("MemAvailable"))
        free = int(line.split()[1]) * 1024
    with contextlib.suppress(OSError, ValueError):
        cgroup = pathlib.Path("/sys/fs/cgroup")
        limit = int((cgroup / "memory.max").read_text())
        free = min(free, limit - int((cgroup / "memory.current").read_text()))
    return free


@functools.lru_cache(maxsize=1)
def describe() -> dict[str, Any]:
    """Versions, platform, devices and revision of this process, as plain data."""
    device = jax.devices()[0]
    return {
        "versions": versions(),
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "platform": device.platform,
        "device_kind": device.device_kind,
        "n_devices": jax.device_count(),
        "n_cores": available_cores(),
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        "git": _revision(),
        "code": code_digest(),
    }


def versions() -> dict[str, str]:
    """Distribution -> version."""
    return {
        name: importlib.metadata.version(name)
        if module is None
        else importlib.import_module(module).__version__
        for name, module in PACKAGES.items()
    }


@functools.lru_cache(maxsize=1)
def code_digest() -> str:
    """12 hex digits of the source files that make the numbers: blocks and experiments."""
    root = pathlib.Path(__file__).parents[1]
    h = hashlib.sha256()
    for package in ("blocks", "experiments"):
        for path in sorted((root / package).rglob("*.py")):
            h.update(str(path.relative_to(root)).encode() + b"\0")
            h.update(path.read_bytes())
    return h.hexdigest()[:12]


def _revision() -> dict[str, Any]:
    """Commit of the code, and whether the files differ from it; nulls outside git."""

    def git(*args: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", "-C", str(pathlib.Path(__file__).parent), *args],
                capture_output=True, text=True, timeout=10, check=True,
            )  # fmt: skip
        except (OSError, subprocess.SubprocessError):
            return None
        return done.stdout.strip()

    revision = git("rev-parse", "HEAD")
    changes = git("status", "--porcelain", "--", str(pathlib.Path(__file__).parents[1]))
    return {"revision": revision, "dirty": None if changes is None else bool(changes)}
