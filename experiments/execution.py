"""How the members of a program run: the layout, and the compiled functions.

Every function takes arguments with a leading member axis and gives results with one, in
every layout; a layout says how many members a call takes and how the axis is run:

    threads   one member a call, several calls at once from Python threads   CPU
    map       all members in one call, one after another (lax.map)           CPU
    vmap      all members in one call, side by side                          GPU, TPU

XLA lets go of the interpreter lock while it computes, so two threads over one executable
use two cores, where vmap over members loses to running them in turn on a CPU.

On a mesh of devices (`experiments.sharding`) a call is cut into equal shares of its
members, and the layout runs the share of each sub-mesh.
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
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from blocks.parameters import path_name
from experiments import distributed
from experiments.environment import available_cores
from experiments.errors import ConfigError
from experiments.flops import matmul_flops
from experiments.program import Program
from experiments.sharding import (
    ONE_DEVICE,
    MeshShape,
    make_mesh,
    over_members,
    state_shardings,
)
from experiments.streaming import STREAMS, Blocks, block_shapes

LAYOUTS = ("threads", "map", "vmap")


@dataclasses.dataclass(frozen=True)
class MemberLayout:
    """How members run.

    name: one of LAYOUTS.
    n_workers: Python threads that call the executables.
    asked: the mesh as it was asked for; which devices there are is known where it runs.
    """

    name: str
    n_workers: int
    asked: MeshShape = ONE_DEVICE

    @property
    def mesh(self) -> MeshShape:
        """The mesh on the devices of this process and those it works with.

        Raises:
            ConfigError: they cannot be laid out so.
        """
        return (
            self.asked if self.asked.is_one else self.asked.filled(jax.device_count())
        )

    def batches(self, members: list) -> list[list]:
        """Members that share calls: as many on each sub-mesh, and then the last few."""
        across = self.mesh.members
        whole = len(members) - len(members) % across
        size = across if self.name == "threads" else max(whole, 1)
        cuts = [members[i : i + size] for i in range(0, whole, size)]
        return [batch for batch in [*cuts, members[whole:]] if batch]

    def smaller(self, n: int) -> int:
        """At most `n` members that share calls without an idle device."""
        across = self.mesh.members
        return n if n < across else n - n % across


def choose_layout(
    name: str, threads: int | None, mesh: MeshShape = ONE_DEVICE
) -> MemberLayout:
    """The layout a config asks for; `auto` is threads on CPU and vmap elsewhere.

    On a mesh one thread calls: two programs that send to each other's devices must be
    started in the same order everywhere. There `auto` is map on CPU.
    """
    if name == "auto":
        name = "threads" if mesh.is_one else "map"
        name = name if jax.default_backend() == "cpu" else "vmap"
    if name not in LAYOUTS:
        raise ConfigError(f"runtime.layout: no layout {name!r}")
    is_threaded = name == "threads" and mesh.is_one
    n_workers = (threads or available_cores()) if is_threaded else 1
    return MemberLayout(name, n_workers, mesh)


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
_MEMBER = ("state", "params", "rest", "seeds", "values", "steps")
_TRAINING = ("train_steps", "probed_steps")  # give a state and rows
FUNCTIONS: dict[str, tuple[tuple[str, ...], tuple[int, ...]]] = {
    "init": (("seeds", "values", "steps"), ()),
    "begin": (("params", "rest", "values", "steps"), ()),
    "train_steps": (("state", "seeds", "values", "steps", "count", "data"), (0,)),
    "probed_steps": (("state", "seeds", "values", "steps", "count", "data"), (0,)),
    "evaluate": (
        ("state", "seeds", "values", "steps", "count", "validation_data"),
        (),
    ),
    "probe_at_init": (("seeds", "values", "steps", "probe_data"), ()),
    "probe_at_any_depth": (("seeds", "values", "steps", "probe_data"), ()),
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
        self._memory: dict[tuple[str, int], Any] = {}  # what XLA plans for each
        self._lock = threading.Lock()
        self._locks: dict[tuple[str, int], threading.Lock] = {}
        # Those of the state cost a trace, which every run would pay.
        self._shapes = functools.cache(self._trace_shapes)
        is_streamed = program.dataset.stream is not None
        self.blocks = Blocks(program) if is_streamed else None

    @property
    def data(self) -> dict[str, jax.Array]:
        """The dataset on the device, or whole on each device of the mesh.

        Nothing where the data are streamed.
        """
        mesh = self.layout.mesh
        if mesh.is_one:
            return device_arrays(self.program.dataset)
        whole = NamedSharding(make_mesh(mesh, mesh.members), P())
        return device_arrays(self.program.dataset, whole)

    def call(self, name: str, *args):
        """Runs a function of the program; compiles it first if it never ran.

        Where the data are streamed, the last argument is replaced by the batches.
        """
        n_members = jax.tree.leaves(args[0])[0].shape[0]
        executable = self.compile(name, n_members)
        if self.blocks is not None:
            args = self._with_blocks(name, args)
        with jax.enable_x64(self.program.signature.x64):
            results = executable(*self.placed(FUNCTIONS[name][0], args))
        # Rows may lie on devices of other processes too; they come back whole.
        if not distributed.is_shared() or name == "init":
            return results
        state, rows = results if name in _TRAINING else (None, results)
        rows = jax.tree.map(distributed.whole, rows)
        return (state, rows) if name in _TRAINING else rows

    def _with_blocks(self, name: str, args: tuple) -> tuple:
        """Arguments with the batches that the call is going to see.

        Members that share a call stand at one step, and end at one.
        """
        names, _ = FUNCTIONS[name]
        if names[-1] not in STREAMS:
            return args
        given = dict(zip(names, args, strict=True))
        if names[-1] != "data":
            return (*args[:-1], self.blocks.make(names[-1], given["seeds"]))
        step = int(distributed.whole(given["state"].step)[0])
        n = int(given["count"])
        end = int(given["steps"][0])
        return (*args[:-1], self.blocks.training(given["seeds"], step, n, end))

    def probe_data(self, seeds: jax.Array) -> dict[str, jax.Array]:
        """The data of `probe_batch`: with a member axis where they are streamed."""
        if self.blocks is None:
            return self.data
        return self.blocks.make("probe_data", seeds)

    def per_member(self, arguments: Sequence[str]) -> tuple[bool, ...]:
        """Which of the named arguments have a member axis."""
        own = _MEMBER if self.blocks is None else (*_MEMBER, *STREAMS)
        return tuple(name in own for name in arguments)

    def placed(self, arguments: Sequence[str], args: tuple) -> tuple:
        """The arguments of a call, by name, where the executable wants them."""
        if self.layout.mesh.is_one:
            return args
        n_members = jax.tree.leaves(args[0])[0].shape[0]
        wanted = self.shardings(arguments, n_members)
        return jax.tree.map(distributed.spread, tuple(args), wanted)

    def shardings(self, arguments: Sequence[str], n_members: int) -> tuple:
        """Where the named arguments lie, on a mesh."""
        mesh = self._mesh(n_members)
        trees = []
        for name, shapes in zip(arguments, self.abstract(None, arguments), strict=True):
            if name == "state":
                specs = self.program.layout.specs
                trees.append(state_shardings(shapes, specs, mesh))
                continue
            (has_members,) = self.per_member([name])
            place = NamedSharding(mesh, P("members") if has_members else P())
            trees.append(jax.tree.map(lambda _, place=place: place, shapes))
        return tuple(trees)

    def _mesh(self, n_members: int) -> jax.sharding.Mesh:
        shape = self.layout.mesh
        across = shape.members_across(n_members)
        if distributed.is_shared() and across < shape.members:
            raise ConfigError(
                f"runtime.mesh.members: {n_members} runs of one program cannot be dealt "
                f"out equally to {shape.members}, and no process may be idle"
            )
        return make_mesh(shape, across)

    def is_ready(self, names: Sequence[str]) -> bool:
        """Whether all these functions have been compiled."""
        with self._lock:
            return set(names) <= {name for name, _ in self._compiled}

    def prepare(self, names: Sequence[str], n_members: int) -> None:
        """Compiles several functions, as many at once as there are cores."""
        n_threads = min(len(names), available_cores())
        if n_threads < 2:  # here, where memory is that has been used before
            for name in names:
                self.compile(name, n_members)
            return
        with ThreadPoolExecutor(n_threads) as threads:
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
                arguments, donated = FUNCTIONS[name]
                fn = getattr(self.program, name)
                results = self._results(name, n_members)
                lowered = self.lower(fn, arguments, n_members, donated, results)
                with jax.enable_x64(self.program.signature.x64):
                    compiled = lowered.compile()
                with self._lock:
                    self._compiled[key] = compiled
                    self.compilations += 1
                    self.compile_seconds += time.perf_counter() - started
        return self._compiled[key]

    def _results(self, name: str, n_members: int):
        """On a mesh, where a function leaves what it gives; a prefix of the tree."""
        if self.layout.mesh.is_one:
            return None
        rows = NamedSharding(self._mesh(n_members), P("members"))
        if name not in (
            "init",
            *_TRAINING,
        ):  # where depth is an input there is no state
            return rows
        (state,) = self.shardings(["state"], n_members)
        return state if name == "init" else (state, rows)

    def lower(
        self,
        fn: Callable,
        arguments: Sequence[str],
        n_members: int,
        donated: tuple[int, ...] = (),
        results=None,
    ) -> jax.stages.Lowered:
        """A function of one member over the members of a call, ready to compile.

        Args:
            arguments: their names.
            results: their shardings on a mesh; None leaves them to the compiler.
        """
        per_member = self.per_member(arguments)
        fn = lift(fn, self.layout.name, per_member)
        with jax.enable_x64(self.program.signature.x64):
            shapes = self.abstract(n_members, arguments)
            if self.layout.mesh.is_one:
                return jax.jit(fn, donate_argnums=donated).lower(*shapes)
            mesh = self._mesh(n_members)
            with jax.set_mesh(mesh):
                return jax.jit(
                    over_members(fn, mesh, per_member),
                    in_shardings=self.shardings(arguments, n_members),
                    out_shardings=results,
                    donate_argnums=donated,
                ).lower(*shapes)

    def abstract(self, n_members: int, arguments: Sequence[str]) -> list:
        """Shapes and dtypes of the named arguments of the program's functions."""
        return [self._shapes(name, n_members) for name in arguments]

    def _trace_shapes(self, name: str, n_members: int | None):
        with jax.enable_x64(self.program.signature.x64):
            return _ABSTRACT[name](self.program, n_members)

    def memory(self, n_members: int, names: Sequence[str]) -> int:
        """Bytes a call with so many members takes at its peak, data left out.

        As XLA plans it: arguments, results that do not reuse them, and temporaries, of
        the largest of the named functions. On each device of a mesh; on all together
        where they share the memory of a CPU.
        """
        data = sum(x.nbytes for x in self.program.dataset.arrays.values())
        needs = []
        for name in names:
            plan = self._memory.get((name, n_members))
            if plan is None:  # asked of XLA once: the answer takes half a short run
                plan = self.compile(name, n_members).memory_analysis()
                self._memory[name, n_members] = plan
            needs.append(
                plan.argument_size_in_bytes
                + plan.output_size_in_bytes
                - plan.alias_size_in_bytes
                + plan.temp_size_in_bytes
                - (data if FUNCTIONS[name][0][-1] in STREAMS else 0)
            )
        shares_memory = jax.default_backend() == "cpu"
        return max(needs) * (self.layout.mesh.n_devices if shares_memory else 1)

    def flops_per_step(self) -> int:
        """Model FLOPs of a gradient: three times the forward matrix products.

        Of the deepest model where depth is an input.
        """
        program = self.program
        seed, data = self.abstract(None, ["seeds", "probe_data"])
        with jax.enable_x64(program.signature.x64):
            params, rest = (
                {path_name(path): _shape_of(v) for path, v in nnx.to_flat_state(state)}
                for state in (program.layout.params, program.layout.state)
            )
            return 3 * matmul_flops(program.loss_of_a_batch, params, rest, seed, data)


def _shape_of(variable: nnx.Variable) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(variable.shape, variable.dtype)


def _shape(program: Program, n: int | None, dtype) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(_members(n), dtype)


def _members(n: int | None) -> tuple[int, ...]:
    """The axes in front: of n members, or of one by itself."""
    return () if n is None else (n,)


def _state_shapes(program: Program, n: int | None):
    # Of the parameters' shapes, which are known: `init` would build the model again.
    arguments = [_ABSTRACT[a](program, None) for a in FUNCTIONS["begin"][0]]
    state = jax.eval_shape(program.begin, *arguments)
    if n is None:
        return state
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct((n, *x.shape), x.dtype), state)


def _data_shapes(argument: str, program: Program, n: int | None):
    if program.dataset.stream is not None:
        return block_shapes(program, argument, n)
    return {
        k: jax.ShapeDtypeStruct(v.shape, v.dtype)
        for k, v in program.dataset.arrays.items()
    }


# Argument -> its shapes for n members (None: one, without the member axis).
_ABSTRACT: dict[str, Callable] = {
    "state": _state_shapes,
    "params": lambda program, n: {
        path: jax.ShapeDtypeStruct((*_members(n), *spec.shape), program.dtype)
        for path, spec in program.layout.specs.items()
    },
    "rest": lambda program, n: {
        path_name(path): jax.ShapeDtypeStruct((*_members(n), *v.shape), v.dtype)
        for path, v in nnx.to_flat_state(program.layout.state)
    },
    "seeds": lambda program, n: _shape(program, n, jnp.uint32),
    "steps": lambda program, n: _shape(program, n, jnp.int32),
    "values": lambda program, n: {
        path: _shape(program, n, jnp.int32 if is_integer else program.dtype)
        for path, is_integer in program.signature.traced
    },
    "count": lambda program, n: jax.ShapeDtypeStruct((), jnp.int32),
    **{argument: functools.partial(_data_shapes, argument) for argument in STREAMS},
}


_on_device: dict[tuple, dict[str, jax.Array]] = {}
_device_lock = threading.Lock()


def device_arrays(dataset, sharding=None) -> dict[str, jax.Array]:
    """The arrays of a dataset on the device, put there once per process.

    Args:
        sharding: where; None is the first device.
    """
    key = (dataset.fingerprint, sharding)
    with _device_lock:
        if key not in _on_device:
            _on_device[key] = {
                k: jax.device_put(v)
                if sharding is None
                else distributed.spread(v, sharding)
                for k, v in dataset.arrays.items()
            }
        return _on_device[key]
