"""How the members of a program run: the layout, and the compiled functions.

Every function takes arguments with a leading member axis and gives results with one, in
every layout; a layout says how many members a call takes and how the axis is run:

    threads   one member a call, several calls at once from Python threads   CPU
    map       all members in one call, one after another (lax.map)           CPU
    vmap      all members in one call, side by side                          GPU, TPU

XLA lets go of the interpreter lock while it computes, so two threads over one executable
use two cores, where vmap over members loses to running them in turn on a CPU.
"""

import dataclasses
import threading
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from experiments.environment import available_cores
from experiments.errors import ConfigError
from experiments.program import Program

LAYOUTS = ("threads", "map", "vmap")


@dataclasses.dataclass(frozen=True)
class MemberLayout:
    """name: one of LAYOUTS. n_workers: Python threads that call the executables."""

    name: str
    n_workers: int

    def batches(self, members: list) -> list[list]:
        """Members that share calls."""
        return [[m] for m in members] if self.name == "threads" else [members]


def choose_layout(name: str, threads: int | None) -> MemberLayout:
    """The layout a config asks for; `auto` is threads on CPU and vmap elsewhere."""
    if name == "auto":
        name = "threads" if jax.default_backend() == "cpu" else "vmap"
    if name not in LAYOUTS:
        raise ConfigError(f"runtime.layout: no layout {name!r}")
    n_workers = (threads or available_cores()) if name == "threads" else 1
    return MemberLayout(name, n_workers)


def lift(fn: Callable, layout: str, per_member: tuple[bool, ...]) -> Callable:
    """`fn` of one member as a function over a leading member axis.

    Args:
        per_member: for each argument, whether it has the member axis or is shared.
    """
    if layout == "vmap":
        return jax.vmap(fn, in_axes=tuple(0 if m else None for m in per_member))

    def with_members(members, args):
        members = iter(members)
        return fn(
            *(next(members) if m else a for m, a in zip(per_member, args, strict=True))
        )

    def lifted(*args):
        members = [a for m, a in zip(per_member, args, strict=True) if m]
        if layout == "map":
            return jax.lax.map(lambda one: with_members(one, args), members)
        one = jax.tree.map(lambda x: jnp.squeeze(x, 0), members)
        return jax.tree.map(lambda x: jnp.expand_dims(x, 0), with_members(one, args))

    return lifted


# Function of a program -> which arguments have the member axis, which is donated.
_FUNCTIONS: dict[str, tuple[tuple[bool, ...], tuple[int, ...]]] = {
    "init": ((True, True, True), ()),
    "train_steps": ((True, True, True, True, False, False), (0,)),
    "evaluate": ((True, True, False, False), ()),
    "probe": ((True, True, False), ()),
    "probe_at_init": ((True, True, True, False), ()),
}


class Executables:
    """The compiled functions of one program in one layout.

    Each is compiled once per number of members, whichever thread asks first.
    `compilations` counts them and `compile_seconds` adds up what they took.
    """

    def __init__(self, program: Program, layout: MemberLayout):
        self.program = program
        self.layout = layout
        self.compilations = 0
        self.compile_seconds = 0.0
        self._compiled: dict[tuple[str, int], Any] = {}
        self._lock = threading.Lock()
        self._locks: dict[tuple[str, int], threading.Lock] = {}
        self._data: dict[str, jax.Array] | None = None

    @property
    def data(self) -> dict[str, jax.Array]:
        """The dataset on the device."""
        with self._lock:
            if self._data is None:
                self._data = device_arrays(self.program.dataset)
            return self._data

    def is_ready(self, names: tuple[str, ...]) -> bool:
        """Whether all these functions have been compiled."""
        with self._lock:
            return set(names) <= {name for name, _ in self._compiled}

    def call(self, name: str, *args):
        """Runs a function of the program; compiles it first if it never ran."""
        n_members = jax.tree.leaves(args[0])[0].shape[0]
        with jax.enable_x64(self.program.signature.x64):
            return self._executable(name, n_members, args)(*args)

    def _executable(self, name: str, n_members: int, args: tuple):
        key = (name, n_members)
        found = self._compiled.get(key)
        if found is not None:
            return found
        with self._lock:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:
            if key not in self._compiled:
                started = time.perf_counter()
                per_member, donated = _FUNCTIONS[name]
                fn = lift(getattr(self.program, name), self.layout.name, per_member)
                compiled = jax.jit(fn, donate_argnums=donated).lower(*args).compile()
                with self._lock:
                    self._compiled[key] = compiled
                    self.compilations += 1
                    self.compile_seconds += time.perf_counter() - started
        return self._compiled[key]


_on_device: dict[str, dict[str, jax.Array]] = {}
_device_lock = threading.Lock()


def device_arrays(dataset) -> dict[str, jax.Array]:
    """The arrays of a dataset on the device, put there once per process."""
    with _device_lock:
        if dataset.fingerprint not in _on_device:
            _on_device[dataset.fingerprint] = {
                k: jax.device_put(v) for k, v in dataset.arrays.items()
            }
        return _on_device[dataset.fingerprint]
