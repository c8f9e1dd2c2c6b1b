"""For all tests: a process must not run out of memory mappings."""

import contextlib
import gc
import pathlib

import pytest

# Linux allows 65,530 a process; every compiled program takes a dozen, and a compiler
# that gets none crashes.
MANY = 20_000


def n_mappings() -> int:
    with contextlib.suppress(OSError), pathlib.Path("/proc/self/maps").open() as lines:
        return sum(1 for _ in lines)
    return 0


@pytest.fixture(autouse=True, scope="module")
def programs_are_dropped_in_time():
    """Forgets compiled programs between two modules once there are many."""
    yield
    if n_mappings() > MANY:
        import jax

        from experiments.group import executables

        executables.cache_clear()
        jax.clear_caches()
        gc.collect()
