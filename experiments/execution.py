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
import functools
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from blocks.parameters import path_name
from experiments.environment import available_cores
from experiments.errors import ConfigError
from experiments.flops import matmul_flops
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


# Function of a program -> its arguments (those of a member, those shared by all) and
# which of them is donated. The names are the ones of `Executables.abstract`.
_MEMBER = ("state", "seeds", "values", "steps")
_FUNCTIONS: dict[str, tuple[tuple[str, ...], tuple[int, ...]]] = {
    "init": (("seeds", "values", "steps"), ()),
    "train_steps": (("state", "seeds", "values", "steps", "count", "data"), (0,)),
    "probed_steps": (("state", "seeds", "values", "steps", "count", "data"), (0,)),
    "evaluate": (("state", "seeds", "values", "steps", "count", "data"), ()),
    "probe_at_init": (("seeds", "values", "steps", "data"), ()),
    "probe_at_any_depth": (("seeds", "values", "steps", "data"), ()),
}


class Executables:
    """The compiled functions of one program in one layout.

    Each is compiled once per number of members, whichever thread asks first, from shapes
    alone. `compilations` counts them and `compile_seconds` adds up what they took.
    """

    def __init__(self, program: Program, layout: MemberLayout):
        self.program = program
        self.layout = layout
        self.compilations = 0
        self.compile_seconds = 0.0
        self._compiled: dict[tuple[str, int], Any] = {}
        self._lock = threading.Lock()
        self._locks: dict[tuple[str, int], threading.Lock] = {}
        # Those of the state cost a trace, which every run would pay.
        self._shapes = functools.cache(self._trace_shapes)

    @property
    def data(self) -> dict[str, jax.Array]:
        """The dataset on the device."""
        return device_arrays(self.program.dataset)

    def call(self, name: str, *args):
        """Runs a function of the program; compiles it first if it never ran."""
        n_members = jax.tree.leaves(args[0])[0].shape[0]
        executable = self.compile(name, n_members)
        with jax.enable_x64(self.program.signature.x64):
            return executable(*args)

    def is_ready(self, names: Sequence[str]) -> bool:
        """Whether all these functions have been compiled."""
        with self._lock:
            return set(names) <= {name for name, _ in self._compiled}

    def prepare(self, names: Sequence[str], n_members: int) -> None:
        """Compiles several functions side by side."""
        threads = ThreadPoolExecutor(max_workers=max(len(names), 1))
        with threads:
            for done in [threads.submit(self.compile, n, n_members) for n in names]:
                done.result()

    def compile(self, name: str, n_members: int):
        """The executable of a function for so many members, compiled if need be."""
        key = (name, n_members)
        with self._lock:
            if key in self._compiled:
                return self._compiled[key]
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:
            if key not in self._compiled:
                started = time.perf_counter()
                arguments, donated = _FUNCTIONS[name]
                per_member = tuple(a in _MEMBER for a in arguments)
                fn = lift(getattr(self.program, name), self.layout.name, per_member)
                with jax.enable_x64(self.program.signature.x64):
                    shapes = self.abstract(n_members, arguments)
                    compiled = (
                        jax.jit(fn, donate_argnums=donated).lower(*shapes).compile()
                    )
                with self._lock:
                    self._compiled[key] = compiled
                    self.compilations += 1
                    self.compile_seconds += time.perf_counter() - started
        return self._compiled[key]

    def abstract(self, n_members: int, arguments: Sequence[str]) -> list:
        """Shapes and dtypes of the named arguments of the program's functions."""
        return [self._shapes(name, n_members) for name in arguments]

    def _trace_shapes(self, name: str, n_members: int | None):
        with jax.enable_x64(self.program.signature.x64):
            return _ABSTRACT[name](self.program, n_members)

    def memory(self, n_members: int, names: Sequence[str]) -> int:
        """Bytes a call with so many members takes at its peak, data left out.

        As XLA plans it: arguments, results that do not reuse them, and temporaries, of
        the largest of the named functions.
        """
        data = sum(x.nbytes for x in self.program.dataset.arrays.values())
        needs = []
        for name in names:
            plan = self.compile(name, n_members).memory_analysis()
            needs.append(
                plan.argument_size_in_bytes
                + plan.output_size_in_bytes
                - plan.alias_size_in_bytes
                + plan.temp_size_in_bytes
                - (data if "data" in _FUNCTIONS[name][0] else 0)
            )
        return max(needs)

    def flops_per_step(self) -> int:
        """Model FLOPs of a gradient: three times the forward matrix products.

        Of the deepest model where depth is an input.
        """
        program = self.program
        seed, data = self.abstract(None, ["seeds", "data"])
        with jax.enable_x64(program.signature.x64):
            params, rest = (
                {path_name(path): _shape_of(v) for path, v in nnx.to_flat_state(state)}
                for state in (program.layout.params, program.layout.state)
            )
            return 3 * matmul_flops(program.loss_of_a_batch, params, rest, seed, data)


def _shape_of(variable: nnx.Variable) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(variable.shape, variable.dtype)


def _shape(program: Program, n: int | None, dtype) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(() if n is None else (n,), dtype)


def _state_shapes(program: Program, n: int | None):
    arguments = [_ABSTRACT[a](program, None) for a in _FUNCTIONS["init"][0]]
    state = jax.eval_shape(program.init, *arguments)
    if n is None:
        return state
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct((n, *x.shape), x.dtype), state)


# Argument -> its shapes for n members (None: one, without the member axis).
_ABSTRACT: dict[str, Callable] = {
    "state": _state_shapes,
    "seeds": lambda program, n: _shape(program, n, jnp.uint32),
    "steps": lambda program, n: _shape(program, n, jnp.int32),
    "values": lambda program, n: {
        path: _shape(program, n, jnp.int32 if is_integer else program.dtype)
        for path, is_integer in program.signature.traced
    },
    "count": lambda program, n: jax.ShapeDtypeStruct((), jnp.int32),
    "data": lambda program, n: {
        k: jax.ShapeDtypeStruct(v.shape, v.dtype)
        for k, v in program.dataset.arrays.items()
    },
}


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
