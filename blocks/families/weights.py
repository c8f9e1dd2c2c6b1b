"""Weights of released models: safetensors -> parameters, and back."""

import dataclasses
import functools
import math
import pathlib
import re
from collections.abc import Iterable, Iterator, Mapping

import jax.numpy as jnp
import numpy as np
from flax import nnx
from safetensors.numpy import save_file

from blocks.families.family import family_of
from blocks.families.fields import FamilyError, Fields
from blocks.families.files import Files
from blocks.families.mxfp4 import Unpacked
from blocks.families.tensors import From, Names, PerLayer
from blocks.parameters import Layout, path_name

ALIGNMENT = 64  # bytes: JAX copies arrays that lie otherwise
STRIP = 2**25  # bytes of a tensor that are read at a time
MANY = 8  # names; more are counted in a message

Path = str | pathlib.Path
Arrays = dict[str, np.ndarray]


def load(
    source: Path | Iterable[Path], fields: Fields, layout: Layout, *, dtype=np.float32
) -> tuple[Arrays, Arrays]:
    """Parameters of a model, and of its state what a checkpoint has.

    Each tensor is read once, a strip at a time, straight into its place, and cast to
    `dtype`: beside the parameters next to nothing is in memory. Both the names that
    transformers uses and those of published files are known.

    Args:
        source: a folder with model.safetensors or its index, a file, or several files.
        fields: the config of the checkpoint.
        layout: of the model that its overrides make.
        dtype: of the parameters; None is `stored_dtype`.

    Returns:
        (params, state) by path, for `layout.merge(params, {**initial_state, **state})`.

    Raises:
        FamilyError: names every tensor that is missing, of another shape or of no use,
            or the parameters that no tensor of the family is.
    """
    found = fit(source, fields, layout)
    found.check()
    return found.read(dtype)


def fit(source: Path | Iterable[Path], fields: Fields, layout: Layout) -> "Fit":
    """Which tensors of a checkpoint a model takes; reads names and shapes only.

    Arguments as of `load`.

    Raises:
        FamilyError: the files are no checkpoint.
    """
    names = family_of(fields).names(fields)
    files = Unpacked(Files(source))
    shapes = shapes_of(layout)
    uses, unknown = best_style(names, layout, shapes, files)
    return Fit(files, names, layout, shapes, uses, tuple(unknown))


@dataclasses.dataclass(frozen=True)
class Fit:
    """A checkpoint and a model, side by side.

    The model may have other parts than the one of the checkpoint: `check` refuses that,
    and `read` takes what there is.

    shapes: of all parameters and state, by path. uses: tensor -> where it goes.
    unknown: paths of parameters that no tensor of the family is.
    """

    files: Files | Unpacked
    names: Names
    layout: Layout
    shapes: dict[str, tuple[int, ...]]
    uses: dict[str, list["Place"]]
    unknown: tuple[str, ...]

    def check(self) -> None:
        """Raises FamilyError: names everything that does not fit."""
        refuse(self.unknown)
        check(self.uses, self.names, self.shapes, self.files)

    @functools.cached_property
    def taken(self) -> dict[str, list["Place"]]:
        """The part of `uses` for which there is a tensor of the right shape."""
        return {
            name: places
            for name, places in self.uses.items()
            if name in self.files.names
            and self.files.shape(name) == shape_of(places[0], self.shapes)
        }

    @functools.cached_property
    def fresh(self) -> list[str]:
        """Paths of parameters for which there is nothing at all."""
        taken = set(paths_of(self.taken))
        return sorted(self.layout.specs.keys() - taken)

    @functools.cached_property
    def gaps(self) -> dict[str, list[tuple[int, ...]]]:
        """Path -> layers, or experts of layers, for which a taken parameter has nothing."""
        taken, gaps = set(paths_of(self.taken)), {}
        for name in self.uses.keys() - self.taken.keys():
            for place in self.uses[name]:
                if place.path in taken:
                    gaps.setdefault(place.path, []).append(place.index)
        return {path: sorted(gaps[path]) for path in sorted(gaps)}

    @functools.cached_property
    def left(self) -> list[str]:
        """Tensors that the model has no use for."""
        return sorted(
            name
            for name in self.files.names.keys() - self.taken.keys()
            if not excused(name, self.names, self.taken, self.files)
        )

    def read(self, dtype) -> tuple[Arrays, Arrays]:
        """What there is of parameters and state; entries in `gaps` have no value.

        dtype: of the parameters; None is `stored_dtype`.
        """
        dtype = stored_dtype(self.files) if dtype is None else dtype
        # A table of numbers, or a bias that chooses, is not to be rounded.
        state = {path: v.dtype for path, v in nnx_paths(self.layout.state)}
        arrays = {
            p: aligned(self.shapes[p], state.get(p, dtype))
            for p in paths_of(self.taken)
        }
        for name, places in self.taken.items():
            tensor = self.files.read(name)
            for place in places:
                to, taken = arrays[place.path], place.entry.take(tensor)
                for strip in strips(taken):
                    to[(*place.index, *strip)] = taken[strip]
                    self.files.let_go()
        params = {path: x for path, x in arrays.items() if path not in state}
        return params, {path: x for path, x in arrays.items() if path in state}


def strips(source: np.ndarray) -> Iterator[tuple[slice, ...]]:
    """Parts of an array, of `STRIP` bytes or one row, in the order of its memory."""
    if source.ndim == 0:
        yield ()
        return
    axis = int(np.argmax(source.strides))
    n = source.shape[axis]
    rows = max(1, STRIP * n // max(source.nbytes, 1))
    for first in range(0, n, rows):
        yield (*[slice(None)] * axis, slice(first, first + rows))


def stored_dtype(files: Files) -> np.dtype:
    """The narrowest type that loses nothing: bfloat16 where all is that, else float32.

    Integers are no parameters, or are packed numbers that bfloat16 holds exactly (mxfp4).
    """
    kinds = {files.dtype(name) for name in files.names}
    kinds = {kind for kind in kinds if jnp.issubdtype(kind, jnp.floating)}
    bfloat16 = np.dtype(jnp.bfloat16)
    return bfloat16 if kinds == {bfloat16} else np.dtype(np.float32)


def aligned(shape: tuple[int, ...], dtype) -> np.ndarray:
    """An array without values that JAX can take over without a copy, on a CPU.

    Entries that are never written take no memory.
    """
    n_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    raw = np.empty(n_bytes + ALIGNMENT, np.uint8)
    first = -raw.ctypes.data % ALIGNMENT
    return raw[first : first + n_bytes].view(dtype).reshape(shape)


def export(params: Mapping, state: Mapping, fields: Fields, layout: Layout) -> Arrays:
    """Tensors under the names of transformers: `load` backwards.

    Raises:
        FamilyError: a parameter is no tensor of the family.
    """
    names = family_of(fields).names(fields)
    arrays = {**state, **params}
    shapes = shapes_of(layout)
    tensors = {}
    uses, unknown = uses_of(names.transformers, layout, shapes)
    refuse(unknown)
    for name, places in uses.items():
        shape = shape_of(places[0], shapes)
        # Where each entry goes shows when entries are numbered and taken.
        numbers = np.arange(np.prod(shape)).reshape(shape)
        tensor = None
        for place in places:
            array = np.asarray(arrays[place.path])[place.index]
            if tensor is None:
                tensor = np.empty(shape, place.entry.dtype or array.dtype)
            tensor.reshape(-1)[place.entry.take(numbers)] = array
        tensors[name] = tensor
    return tensors


def save(
    path: Path, params: Mapping, state: Mapping, fields: Fields, layout: Layout
) -> None:
    """Writes `export` to one safetensors file."""
    path = pathlib.Path(path)
    temporary = path.with_name(f".{path.name}.tmp")
    save_file(export(params, state, fields, layout), temporary, {"format": "pt"})
    temporary.replace(path)


# Which tensor goes where ----------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Place:
    """A layer, or an expert of one, of a parameter; what of the tensor it is."""

    path: str
    index: tuple[int, ...]
    entry: From


def uses_of(
    table: Mapping[str, From | PerLayer], layout: Layout, shapes: Mapping[str, tuple]
) -> tuple[dict[str, list[Place]], list[str]]:
    """Tensor -> where it goes; and the parameters that the table lacks."""
    model = nnx.merge(layout.graphdef, layout.params, layout.state)
    layers_at = model.blocks.places
    uses: dict[str, list[Place]] = {}
    unknown = []
    for path, shape in shapes.items():
        _, place, inside = (
            path.split("/", 2) if path.startswith("blocks/") else ("", "", path)
        )
        found = table.get(inside)
        if found is None:
            if path in layout.specs:
                unknown.append(path)
            continue
        for k, layer in enumerate(layers_at[place]) if place else [(None, None)]:
            entry = found.at(layer)
            experts = range(shape[1]) if "{e}" in entry.name else [None]
            for e in experts:
                index = tuple(n for n in (k, e) if n is not None)
                name = entry.name.format(i=layer, e=e)
                uses.setdefault(name, []).append(Place(path, index, entry))
    return uses, unknown


def refuse(unknown: Iterable[str]) -> None:
    """Raises FamilyError: names parameters that no tensor of the family is."""
    if unknown:
        raise FamilyError(
            f"no tensor of the checkpoint is {listed(list(unknown))}: the model is not the "
            "one of the config"
        )


def best_style(names: Names, layout: Layout, shapes, files: Files):
    """`uses_of` under the names of which the files have more."""
    styles = [names.transformers, *([names.hub] if names.hub else [])]
    found = [uses_of(table, layout, shapes) for table in styles]
    return max(found, key=lambda of: len(of[0].keys() & files.names.keys()))


def check(uses, names: Names, shapes, files: Files) -> None:
    """Raises FamilyError: names what does not fit."""
    missing = sorted(uses.keys() - files.names.keys())
    extra = [
        name
        for name in sorted(files.names.keys() - uses.keys())
        if not excused(name, names, uses, files)
    ]
    misshapen = []
    for name in sorted(uses.keys() & files.names.keys()):
        expected, actual = shape_of(uses[name][0], shapes), files.shape(name)
        if actual != expected:
            misshapen.append(f"{name} (expected {list(expected)}, got {list(actual)})")
    told = [
        f"{what}: {listed(found)}"
        for what, found in (
            ("missing", missing),
            ("of another shape", misshapen),
            ("of no use", extra),
        )
        if found
    ]
    if told:
        raise FamilyError(f"{files.source}: tensors {'; '.join(told)}")


def excused(name: str, names: Names, uses, files: Files) -> bool:
    """Whether a tensor that has no use is known to hold nothing of the model's own."""
    known = any(re.fullmatch(pattern, name) for pattern in names.ignored)
    return known or is_copy(name, names, uses, files)


def is_copy(name: str, names: Names, uses, files: Files) -> bool:
    """Whether a tensor repeats the one it is tied to."""
    original = names.copies.get(name)
    if original is None:
        return False
    if original not in files.names:  # under its published name
        original = next(
            (n for n in uses if original.endswith(n) and n in files.names), None
        )
    return original is not None and np.array_equal(
        files.read(name), files.read(original)
    )


def shapes_of(layout: Layout) -> dict[str, tuple[int, ...]]:
    """Shape of every parameter and of all state."""
    shapes = {path: spec.shape for path, spec in layout.specs.items()}
    return shapes | {path: tuple(v.shape) for path, v in nnx_paths(layout.state)}


def nnx_paths(state) -> list[tuple[str, object]]:
    return [(path_name(path), v) for path, v in nnx.to_flat_state(state)]


def shape_of(place: Place, shapes) -> tuple[int, ...]:
    """Shape of the tensor that a place is taken from."""
    return tuple(place.entry.shape(shapes[place.path][len(place.index) :]))


def paths_of(uses) -> list[str]:
    return list(dict.fromkeys(p.path for places in uses.values() for p in places))


def listed(found: list[str]) -> str:
    more = len(found) - MANY
    return ", ".join(found[:MANY]) + (f" and {more} more" if more > 0 else "")
