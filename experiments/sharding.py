"""Which device computes and holds what: a mesh of devices with named axes.

    members   the members of a group: each device computes its own, nothing is sent
    data      the sequences of a batch
    fsdp      the sequences of a batch, and with them parameters and optimizer state
    tensor    heads, hidden units and the vocabulary

The axes stand in this order, so that devices next to each other, which are wired best,
share what is sent most. `members` is a manual axis (`jax.shard_map`): every device runs
the program of its members, as if it were alone. Along the others the compiler splits one
member's program by the placement of its inputs and of the batch, so results differ from
those of one device only in the order of sums.
"""

import dataclasses
import functools
import math
from collections.abc import Callable

import jax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from blocks.parameters import ParamSpec
from experiments.errors import ConfigError

REST = -1  # the size of an axis that takes all devices that the others leave

# Axes along which a batch is cut.
BATCH = ("data", "fsdp")

# Kernels [d_in, d_out] by the name of their map: those that make heads and hidden units
# are cut along what they make, those that read them along what they read.
MAKES_UNITS = ("q", "k", "v", "up", "gate")
READS_UNITS = ("o", "down")


@dataclasses.dataclass(frozen=True)
class MeshShape:
    """`runtime.mesh`: devices along each axis; all ones is one device and no mesh."""

    members: int = 1
    data: int = 1
    fsdp: int = 1
    tensor: int = 1

    def __post_init__(self):
        for axis, size in self.sizes.items():
            if size < 1 and size != REST:
                raise ConfigError(
                    f"runtime.mesh.{axis}: must be at least 1, or {REST} for all devices "
                    f"that are left, got {size}"
                )
        if list(self.sizes.values()).count(REST) > 1:
            raise ConfigError(
                f"runtime.mesh: one axis may be {REST}, got {self.in_words()}"
            )

    @property
    def sizes(self) -> dict[str, int]:
        return dataclasses.asdict(self)

    @property
    def is_one(self) -> bool:
        """Whether no mesh is asked for."""
        return all(size == 1 for size in self.sizes.values())

    @property
    def within(self) -> int:
        """Devices that one member is spread over."""
        return self.data * self.fsdp * self.tensor

    @property
    def n_devices(self) -> int:
        return self.members * self.within

    def in_words(self) -> str:
        """`members=2 x fsdp=4`: the axes that are not 1."""
        asked = [f"{axis}={size}" for axis, size in self.sizes.items() if size != 1]
        return " x ".join(asked)

    def filled(self, n_devices: int) -> "MeshShape":
        """The shape without `REST`, for so many devices.

        Raises:
            ConfigError: the devices cannot be laid out so, or some would be idle.
        """
        if self.is_one:
            return self
        known = math.prod(size for size in self.sizes.values() if size != REST)
        rest = [axis for axis, size in self.sizes.items() if size == REST]
        if n_devices % known or not (rest or n_devices == known):
            there = "there is 1 device" if n_devices == 1 else f"there are {n_devices}"
            hint = f"; one axis may be {REST}, what is left" if not rest else ""
            raise ConfigError(
                f"runtime.mesh: {self.in_words()} needs "
                f"{'a multiple of ' * bool(rest)}{known} devices, {there}{hint}"
            )
        return dataclasses.replace(self, **dict.fromkeys(rest, n_devices // known))

    def members_across(self, n_members: int) -> int:
        """Sub-meshes that so many members are dealt out to, each an equal number."""
        upto = range(min(self.members, n_members), 0, -1)
        return next(n for n in upto if n_members % n == 0)

    def check(self, config, specs: dict[str, ParamSpec]) -> None:
        """Refuses a run whose batch, heads or widths the mesh does not divide.

        Args:
            config: the run.
            specs: its parameters.

        Raises:
            ConfigError: names the key and both numbers.
        """
        cut, part = self.data * self.fsdp, config.batch_size // config.accumulate
        if part % cut:
            raise ConfigError(
                f"runtime.mesh: data x fsdp = {cut} must divide the {part} sequences "
                "of batch_size / accumulate"
            )
        model, attention = config.model, config.model.get("attention")
        heads = {key: model.get(key) for key in ("n_heads", "n_kv_heads")}
        if attention is not None:
            heads["attention.n_kv_heads"] = attention.get("n_kv_heads")
        for key, n in heads.items():
            if n is not None and n % self.tensor:
                raise ConfigError(
                    f"runtime.mesh.tensor: must divide model.{key}={n}, got {self.tensor}"
                )
        for path, spec in specs.items():
            axis = _tensor_axis(path, spec)
            if axis is not None and spec.shape[axis] % self.tensor:
                raise ConfigError(
                    f"runtime.mesh.tensor: must divide axis {axis} of {path} "
                    f"{list(spec.shape)}, got {self.tensor}"
                )


ONE_DEVICE = MeshShape()


@functools.lru_cache(maxsize=8)
def make_mesh(shape: MeshShape, members: int) -> Mesh:
    """The devices of the first `members` sub-meshes of a filled shape."""
    sizes = tuple(shape.sizes.values())
    whole = jax.make_mesh(
        sizes, tuple(shape.sizes), axis_types=(AxisType.Auto,) * len(sizes)
    )
    if members == shape.members:
        return whole
    return Mesh(whole.devices[:members], whole.axis_names, axis_types=whole.axis_types)


def over_members(fn: Callable, mesh: Mesh, per_member: tuple[bool, ...]) -> Callable:
    """`fn` of some members as a function of all, an equal share on each sub-mesh.

    Args:
        fn: its arguments and results have a leading member axis.
        per_member: for each argument, whether it has the axis or is shared.
    """
    if mesh.shape["members"] == 1:
        return fn
    within = math.prod(mesh.devices.shape[1:])
    return jax.shard_map(
        fn,
        mesh=mesh,
        in_specs=tuple(P("members") if m else P() for m in per_member),
        out_specs=P("members"),
        axis_names=set(mesh.axis_names) if within == 1 else {"members"},
        check_vma=False,
    )


def split_batch(batch):
    """The batch, cut along its first axis over `data` and `fsdp` of the mesh in use.

    Without a mesh (`jax.set_mesh`) it is what it was.
    """
    mesh = jax.sharding.get_abstract_mesh()
    free = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    axes = tuple(a for a in BATCH if free.get(a) == AxisType.Auto and mesh.shape[a] > 1)
    if not axes:
        return batch
    return jax.tree.map(lambda x: jax.lax.with_sharding_constraint(x, P(axes)), batch)


def whole_parameters(params: dict, specs: dict[str, ParamSpec]) -> dict:
    """The parameters as a model computes with them: no longer cut along `fsdp`.

    Left to itself the compiler fetches, instead of a kernel that is cut along its hidden
    units, the activations of all sequences. Without a mesh they are what they were.
    """
    mesh = jax.sharding.get_abstract_mesh()
    free = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    if free.get("fsdp") != AxisType.Auto or mesh.shape["fsdp"] == 1:
        return params
    sizes = {**mesh.shape, "fsdp": 1}
    return {
        path: jax.lax.with_sharding_constraint(
            x, P(*axes_of(path, specs[path], x.shape, sizes))
        )
        for path, x in params.items()
    }


def state_shardings(state, specs: dict[str, ParamSpec], mesh: Mesh):
    """Where the state of members lives: a tree like `state` of shardings.

    Whatever is kept under the path of a parameter (an average, a moment, a factor) is
    laid out by the rule of the parameter.

    Args:
        state: arrays or shapes, without the member axis.
        specs: the parameters by path.
    """

    def place(keys, leaf):
        names = [getattr(key, "key", None) for key in keys]
        path = next((name for name in reversed(names) if name in specs), None)
        axes = (
            () if path is None else axes_of(path, specs[path], leaf.shape, mesh.shape)
        )
        return NamedSharding(mesh, P("members", *axes))

    return jax.tree_util.tree_map_with_path(place, state)


def axes_of(
    path: str, spec: ParamSpec, shape: tuple[int, ...], sizes: dict[str, int]
) -> tuple[str | None, ...]:
    """For each axis of an array kept for a parameter, the mesh axis it is cut along.

    `tensor` goes by the name of the map. `fsdp` takes the longest axis that it divides
    and that is free, the first of equals. A stacked axis (layers, experts) is never cut:
    the loop over layers would have to fetch each layer from the device that has it.
    Vectors stay whole; they are small and would cost a message each.

    Args:
        shape: of the array, which need not be that of the parameter.
    """
    n = spec.n_stacked
    axes: list[str | None] = [None] * len(shape)
    if len(shape) - n < 2 or shape[:n] != spec.shape[:n]:
        return tuple(axes)
    if sizes["tensor"] > 1 and shape == spec.shape:
        axis = _tensor_axis(path, spec)
        if axis is not None:
            axes[axis] = "tensor"
    if sizes["fsdp"] > 1:
        free = [
            i
            for i in range(n, len(shape))
            if axes[i] is None and shape[i] % sizes["fsdp"] == 0
        ]
        if free:
            axes[max(free, key=lambda i: shape[i])] = "fsdp"
    return tuple(axes)


def _tensor_axis(path: str, spec: ParamSpec) -> int | None:
    """The axis of a parameter that `tensor` cuts, if there is one."""
    d_in, d_out = len(spec.shape) - 2, len(spec.shape) - 1
    if spec.role in ("embedding", "head"):  # [vocab, d_model] and its transpose
        return d_in if spec.role == "embedding" else d_out
    name = path.split("/")[-2:-1]
    if spec.role != "matrix" or d_out - spec.n_stacked != 1 or not name:
        return None
    if name[0] in MAKES_UNITS:
        return d_out
    return d_in if name[0] in READS_UNITS else None
