"""Weights of released models: safetensors -> parameters, and back."""

import dataclasses
import json
import pathlib
import re
from collections.abc import Iterable, Mapping

import numpy as np
from flax import nnx
from safetensors import safe_open
from safetensors.numpy import save_file

from blocks.families.family import family_of
from blocks.families.fields import FamilyError, Fields
from blocks.families.tensors import From, Names, PerLayer
from blocks.parameters import Layout, path_name

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
MANY = 8  # names; more are counted in a message

Path = str | pathlib.Path
Arrays = dict[str, np.ndarray]


def load(
    source: Path | Iterable[Path], fields: Fields, layout: Layout, *, dtype=np.float32
) -> tuple[Arrays, Arrays]:
    """Parameters of a model, and of its state what a checkpoint has.

    Each tensor is read once, and cast to `dtype`. Both the names that transformers uses
    and those of published files are known.

    Args:
        source: a folder with model.safetensors or its index, a file, or several files.
        fields: the config of the checkpoint.
        layout: of the model that its overrides make.
        dtype: of the parameters.

    Returns:
        (params, state) by path, for `layout.merge(params, {**initial_state, **state})`.

    Raises:
        FamilyError: names every tensor that is missing, of another shape or of no use,
            or the parameters that no tensor of the family is.
    """
    names = family_of(fields).names(fields)
    files = Files(source)
    shapes = shapes_of(layout)
    uses = best_style(names, layout, shapes, files)
    check(uses, names, shapes, files)
    state = {path for path, _ in nnx_paths(layout.state)}
    arrays = {path: np.empty(shapes[path], dtype) for path in paths_of(uses)}
    for name, places in uses.items():
        tensor = files.read(name)
        for place in places:
            arrays[place.path][place.index] = place.entry.take(tensor)
    params = {path: x for path, x in arrays.items() if path not in state}
    return params, {
        path: x.astype(np.float32) for path, x in arrays.items() if path in state
    }


def export(params: Mapping, state: Mapping, fields: Fields, layout: Layout) -> Arrays:
    """Tensors under the names of transformers: `load` backwards.

    Raises:
        FamilyError: a parameter is no tensor of the family.
    """
    names = family_of(fields).names(fields)
    arrays = {**state, **params}
    shapes = shapes_of(layout)
    tensors = {}
    for name, places in uses_of(names.transformers, layout, shapes).items():
        shape = shape_of(places[0], shapes)
        # Where each entry goes shows when entries are numbered and taken.
        numbers = np.arange(np.prod(shape)).reshape(shape)
        tensor = None
        for place in places:
            array = np.asarray(arrays[place.path])[place.index]
            if tensor is None:
                tensor = np.empty(shape, array.dtype)
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
) -> dict[str, list[Place]]:
    """Tensor -> where it goes.

    Raises:
        FamilyError: names the parameters that the table lacks.
    """
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
    if unknown:
        raise FamilyError(
            f"no tensor of the checkpoint is {listed(unknown)}: the model is not the "
            "one of the config"
        )
    return uses


def best_style(names: Names, layout: Layout, shapes, files: "Files"):
    """The uses under the names of which the files have more."""
    styles = [names.transformers, *([names.hub] if names.hub else [])]
    uses = [uses_of(table, layout, shapes) for table in styles]
    return max(uses, key=lambda tensors: len(tensors.keys() & files.names.keys()))


def check(uses, names: Names, shapes, files: "Files") -> None:
    """Raises FamilyError: names what does not fit."""
    missing = sorted(uses.keys() - files.names.keys())
    extra = []
    for name in sorted(files.names.keys() - uses.keys()):
        if any(re.fullmatch(pattern, name) for pattern in names.ignored):
            continue
        if is_copy(name, names, uses, files):
            continue
        extra.append(name)
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


def is_copy(name: str, names: Names, uses, files: "Files") -> bool:
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


class Files:
    """The tensors of a checkpoint, in one file or several.

    source: as `load` takes it. names: tensor -> file.

    Raises:
        FamilyError: there is no such file, or it is no safetensors file.
    """

    def __init__(self, source: Path | Iterable[Path]):
        several = not isinstance(source, (str, pathlib.Path))
        paths = [pathlib.Path(p) for p in source] if several else _paths(source)
        self.source = ", ".join(map(str, paths)) if several else str(source)
        self.names: dict[str, pathlib.Path] = {}
        self._open = {}
        for path in paths:
            try:
                self._open[path] = safe_open(path, framework="np")
            except Exception as error:  # the library has no type of its own for all
                raise FamilyError(f"{path}: not a safetensors file ({error})") from None
            self.names |= dict.fromkeys(self._open[path].keys(), path)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._open[self.names[name]].get_slice(name).get_shape())

    def read(self, name: str) -> np.ndarray:
        return self._open[self.names[name]].get_tensor(name)


def _paths(source: Path) -> list[pathlib.Path]:
    path = pathlib.Path(source).expanduser()
    if not path.is_dir():
        return [path]
    index = path / INDEX
    if not index.exists():
        if not (path / SINGLE).exists():
            raise FamilyError(f"{path}: expected {SINGLE} or {INDEX} in this folder")
        return [path / SINGLE]
    try:
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        return [path / file for file in sorted(set(weight_map.values()))]
    except (ValueError, KeyError, AttributeError):
        raise FamilyError(
            f"{index}: expected a weight_map of tensors to files"
        ) from None
