"""Several processes, one per host or per device, that work on the same runs as one.

All run the same command and take every step together; each holds its part of the arrays.
The first one writes (`experiments.following`). What depends on a process (memory that is
free, a signal) is agreed on, or they would wait for each other for ever.
"""

import os
import sys
import threading
from typing import Any

import jax
import numpy as np

from experiments.errors import ConfigError, UserError, nearest

AUTO = "auto"
NEEDED = ("coordinator", "num_processes", "process_id")
OPTIONAL = ("local_device_ids",)

_started: Any = None  # what the processes were started with


def check(asked: str | dict[str, Any] | None) -> None:
    """Refuses what `start` could not use.

    Raises:
        ConfigError: names the key.
    """
    if asked is None or asked == AUTO:
        return
    at = "runtime.distributed"
    if not isinstance(asked, dict):
        raise ConfigError(
            f"{at}: expected null, {AUTO} or a mapping with {', '.join(NEEDED)}, "
            f"got {asked!r}"
        )
    for key in asked:
        if key not in NEEDED + OPTIONAL:
            raise ConfigError(
                f"{at}.{key}: no such key{nearest(key, NEEDED + OPTIONAL)}"
            )
    missing = [key for key in NEEDED if key not in asked]
    if missing:
        raise ConfigError(f"{at}.{missing[0]}: missing")
    coordinator, n, i = (asked[key] for key in NEEDED)
    if not isinstance(coordinator, str) or ":" not in coordinator:
        raise ConfigError(f"{at}.coordinator: expected host:port, got {coordinator!r}")
    if type(n) is not int or n < 1:
        raise ConfigError(f"{at}.num_processes: must be at least 1, got {n!r}")
    if type(i) is not int or not 0 <= i < n:
        raise ConfigError(f"{at}.process_id: must be in 0 .. {n - 1}, got {i!r}")


def start(asked: str | dict[str, Any] | None) -> None:
    """Joins the other processes; does nothing where none are asked for, or a second time.

    Must come before anything looks at the devices. `auto` takes the numbers from the
    cluster's environment (Slurm, Open MPI, TPU pods).

    Raises:
        UserError: the others cannot be found.
    """
    global _started
    if asked is None or _started is not None:
        return
    check(asked)
    # Only where the devices are CPUs; others have their own.
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    given = {} if asked == AUTO else dict(asked)
    if given:
        given["coordinator_address"] = given.pop("coordinator")
    try:
        jax.distributed.initialize(**given)
    except (RuntimeError, ValueError) as error:
        line = str(error).strip().splitlines()[0]
        raise UserError(f"runtime.distributed: {line}") from error
    _started = asked


def is_shared() -> bool:
    """Whether other processes work on the same runs."""
    return _started is not None and jax.process_count() > 1


def is_first() -> bool:
    """Whether this is the process that writes."""
    return not is_shared() or jax.process_index() == 0


def everyones(x: float) -> np.ndarray:
    """What each process gives, by process; all must ask."""
    if not is_shared():
        return np.asarray([x])
    from jax.experimental import multihost_utils

    return np.asarray(multihost_utils.process_allgather(np.float32(x))).reshape(-1)


def meet(where: str) -> None:
    """Returns when all processes are there."""
    if is_shared():
        from jax.experimental import multihost_utils

        multihost_utils.sync_global_devices(where)


def whole(x) -> np.ndarray:
    """An array on the host, parts that other processes hold included; all must ask."""
    if isinstance(x, jax.Array) and not x.is_fully_addressable:
        from jax.experimental import multihost_utils

        return np.asarray(multihost_utils.process_allgather(x, tiled=True))
    return np.asarray(x)


def spread(x, sharding: jax.sharding.Sharding) -> jax.Array:
    """An array where it is wanted; one that every process has whole, or is there."""
    if isinstance(x, jax.Array) and x.sharding.is_equivalent_to(sharding, x.ndim):
        return x
    if sharding.is_fully_addressable:
        return jax.device_put(x, sharding)
    host = whole(x)
    return jax.make_array_from_callback(host.shape, sharding, lambda at: host[at])


class AgreedStop(threading.Event):
    """An event that is set for all processes once it is set for one.

    `is_set` is asked by all of them, at the same places of the same loop.
    """

    def __init__(self, own: threading.Event):
        super().__init__()
        self._own = own

    def is_set(self) -> bool:
        if everyones(self._own.is_set()).any():
            self._own.set()
        return self._own.is_set()


def leave(line: str) -> None:
    """Ends this process, where it shares its runs, for a reason the others do not know.

    They would wait in the next sum over all devices; so they are told, and end too.
    """
    if is_shared():
        sys.stderr.write(f"error: process {jax.process_index()}: {line}\n")
        sys.stderr.flush()
        os._exit(1)
