"""Parameters as a flat dict of arrays, and what each of them is.

A model is built once, abstractly, and split into a `Layout` (static: graph definition
and one `ParamSpec` per parameter) and arrays. Training, checkpoints, routing and probes
work on `{path: array}`; `Layout.merge` puts a module together again inside a trace.
"""

import dataclasses
from collections.abc import Callable

import jax
from flax import nnx

ROLES = (
    "matrix",  # hidden kernels: attention and feed-forward
    "embedding",  # token table
    "head",  # unembedding
    "position",  # learned positions
    "gain",  # of a normalizer
    "bias",  # of a linear map or a normalizer
    "alpha",  # inner scale of a pointwise normalizer
    "shift",  # inner offset of a pointwise normalizer
    "scale",  # of a branch, a stream or the embedding
    "mixing",  # hyper-connection coefficients
    "router",  # of a mixture of experts
    "sink",  # attention sinks
)


@dataclasses.dataclass(frozen=True)
class ParamSpec:
    """What one parameter is.

    role: one of `ROLES`.
    shape: the whole shape, stacked axes included.
    n_stacked: how many leading axes are copies (layers, experts), so that
        `shape[n_stacked:]` is the parameter of one layer.
    """

    role: str
    shape: tuple[int, ...]
    n_stacked: int = 0

    @property
    def size(self) -> int:
        size = 1
        for n in self.shape:
            size *= n
        return size


@dataclasses.dataclass(frozen=True)
class Layout:
    """The static half of a model: how flat arrays become a module and back."""

    graphdef: nnx.GraphDef
    params: nnx.State  # abstract, gives the tree and the metadata
    state: nnx.State  # likewise, what is not trained
    specs: dict[str, ParamSpec]

    def merge(self, params: dict[str, jax.Array], state: dict[str, jax.Array]):
        """Builds the module that holds these arrays.

        Raises:
            ValueError: an array is missing, of another shape, or of no known path.
        """
        return nnx.merge(
            self.graphdef,
            _fill(self.params, params, "parameter"),
            _fill(self.state, state, "state"),
        )

    def split(self, model) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
        """The arrays of a module of this layout: parameters, other state."""
        _, params, state = nnx.split(model, nnx.Param, ...)
        return _flatten(params), _flatten(state)


def layout_of(make_model: Callable[[], nnx.Module]) -> Layout:
    """Describes the model that `make_model()` builds, without allocating anything.

    Raises:
        ValueError: a parameter has no role, or one that is not in `ROLES`.
    """
    graphdef, params, state = nnx.split(nnx.eval_shape(make_model), nnx.Param, ...)
    specs = {}
    for path, variable in nnx.to_flat_state(params):
        name = path_name(path)
        meta = variable.get_metadata()
        role = meta.get("role")
        if role not in ROLES:
            raise ValueError(
                f"parameter {name}: expected role= one of {', '.join(ROLES)}, "
                f"got {role!r} (write nnx.Param(value, role=...))"
            )
        specs[name] = ParamSpec(role, tuple(variable.shape), meta.get("n_stacked", 0))
    return Layout(graphdef, params, state, specs)


def path_name(path) -> str:
    """('blocks', 'layers', 'kernel') -> 'blocks/layers/kernel'."""
    return "/".join(str(p) for p in path)


def _flatten(state: nnx.State) -> dict[str, jax.Array]:
    return {path_name(path): v[...] for path, v in nnx.to_flat_state(state)}


def _fill(state: nnx.State, arrays: dict[str, jax.Array], kind: str) -> nnx.State:
    variables = {path_name(path): (path, v) for path, v in nnx.to_flat_state(state)}
    unknown = sorted(arrays.keys() - variables.keys())
    if unknown:
        raise ValueError(f"{kind} {unknown[0]}: the model has none of this name")
    filled = []
    for name, (path, variable) in variables.items():
        if name not in arrays:
            raise ValueError(f"{kind} {name}: expected an array, got none")
        # A wrong shape could broadcast: a gain of one feature to all of them.
        if arrays[name].shape != variable.shape:
            raise ValueError(
                f"{kind} {name}: expected shape {variable.shape}, "
                f"got {arrays[name].shape}"
            )
        filled.append((path, variable.replace(arrays[name])))
    return nnx.from_flat_state(filled)
