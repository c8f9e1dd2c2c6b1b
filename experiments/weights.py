"""Weights that a run starts from: of a released model, or of a run of ours.

`model.from_checkpoint=DIR` becomes the model of DIR and `weights.path=DIR`. Tensors go
one by one into arrays that JAX takes over without a copy (on a CPU), and what is loaded
is never initialized: the peak is the parameters and one tensor.
"""

import dataclasses
import json
import pathlib
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from blocks.families.fields import FamilyError, Fields
from blocks.families.weights import Fit, aligned, fit, listed
from blocks.parameters import Layout, layout_of, path_name
from experiments.config import Config, Weights
from experiments.errors import ConfigError
from experiments.fingerprint import fingerprint, is_run

Arrays = dict[str, jax.Array]
KEY = "model.from_checkpoint"
# Words in keys whose change gives a stacked parameter more layers, or other ones.
MORE_LAYERS = ("n_layers", "pattern", "experts")


def load(config: Config, *, dtype: str | None = None) -> tuple[Layout, Arrays, Arrays]:
    """The model of a config, with the weights that `config.weights` names.

    Args:
        dtype: of the parameters, `float32` or `bfloat16`; None is the narrower of them
            that loses nothing of the checkpoint.

    Returns:
        layout, params, rest: for `layout.merge(params, rest)`.

    Raises:
        ConfigError: there are none, or they do not fit the model.
    """
    if config.weights.path is None:
        raise ConfigError(f"{KEY}: expected the folder of a checkpoint, got none")
    build = maker(config)
    layout = layout_of(lambda: build(jnp.uint32(0)))
    found = fit_of(config.weights, layout)
    return layout, *start(found, build, config.seed, dtype)


def check_weights(config: Config) -> None:
    """Refuses weights that a run would not start from.

    Raises:
        ConfigError: names the keys.
    """
    task, runtime = config.task, config.runtime
    if config.weights.path is None:
        if getattr(task.cls, "needs_weights", False):
            raise ConfigError(
                f"{KEY}: task={task.name.lower()} looks at a checkpoint: expected the "
                "folder of one"
            )
        return
    if not getattr(task.cls, "takes_weights", False):
        raise ConfigError(
            f"{KEY}: {task.name} initializes its model (task=train and task=inspect "
            "start from weights)"
        )
    if runtime.extend_from is not None:
        raise ConfigError(f"{KEY}: not with runtime.extend_from, another start")
    if not runtime.mesh.is_one:
        raise ConfigError(f"{KEY}: not on a runtime.mesh of several devices")


def maker(config: Config) -> Callable[[jax.Array], nnx.Module]:
    """seed -> the model, with the initial values that a run of this seed has."""
    from experiments.group import load_dataset
    from experiments.program import INIT

    make = config.model.build(config.traced_values(), "model")
    keywords = dict(config.model.keywords)
    more = {}
    if "vocab_size" in keywords and keywords["vocab_size"] is None:
        more["vocab_size"] = load_dataset(config.data).vocab_size

    def build(seed):
        key = jax.random.fold_in(jax.random.key(seed), INIT)
        return make(**more, rngs=nnx.Rngs(params=key))

    return build


def fit_of(weights: Weights, layout: Layout) -> "Fit | RunFit":
    """What a model takes of the weights; reads names and shapes only.

    Raises:
        ConfigError: they are none, or do not fit. Where parts of the model were changed,
            only if there is nothing to take, or a layer lacks what others have.
    """
    path = pathlib.Path(weights.path)
    try:
        if is_run(path):
            found = RunFit.of(path, layout)
        else:
            found = fit(path, Fields.read(str(path)), layout)
        if not weights.changed:
            found.check()
        elif not found.taken:
            raise FamilyError(f"{path}: nothing of it has a place in the model")
        elif found.gaps and not any(
            word in key for key in weights.changed for word in MORE_LAYERS
        ):
            raise FamilyError(f"{path}: nothing for {listed(_gaps(found))}")
    except FamilyError as error:
        raise ConfigError(f"{KEY}: {error}") from None
    return found


def start(
    found: "Fit | RunFit", build: Callable, seed: int, dtype: str | None
) -> tuple[Arrays, Arrays]:
    """Parameters and other state to start from, on the device.

    What the weights do not have is as a run of this seed initializes it, which is a
    program of its own that computes nothing else.

    Args:
        build: seed -> model.
    """
    params, rest = found.read(None if dtype is None else jnp.dtype(dtype))
    layout = found.layout
    kept = next(iter(params.values())).dtype
    of_state = [path_name(path) for path, _ in nnx.to_flat_state(layout.state)]
    missing = [path for path in of_state if path not in rest]
    wanted = [*found.fresh, *found.gaps, *missing]
    if wanted:

        def initial(seed):
            params, rest = layout.split(build(seed))
            return {path: {**params, **rest}[path] for path in wanted}

        made = jax.device_get(jax.jit(initial)(jnp.uint32(seed)))
        params |= {path: made[path].astype(kept) for path in found.fresh}
        rest |= {path: made[path] for path in missing}
        for path, entries in found.gaps.items():
            to = params if path in params else rest
            for entry in entries:
                to[path][entry] = made[path][entry]
    return _on_device(params), _on_device(rest)


def _on_device(arrays: dict[str, np.ndarray]) -> Arrays:
    """Each as a JAX array, in the order in which the host lets go of them."""
    return {
        path: jax.device_put(arrays.pop(path), may_alias=True) for path in list(arrays)
    }


def told(found: "Fit | RunFit", weights: Weights) -> list[str]:
    """What was taken, what starts anew and what is left, in a line each."""
    taken = sorted(found.layout.specs.keys() - set(found.fresh))
    return [
        f"weights of {weights.path}: {len(taken)} of {len(found.layout.specs)} "
        "parameters are taken",
        f"as initialized: {listed([*found.fresh, *_gaps(found)]) or 'none'}",
        f"left in the checkpoint: {listed(found.left) or 'nothing'}",
    ]


def _gaps(found: "Fit | RunFit") -> list[str]:
    return [
        f"{path} (of layer {', '.join('/'.join(map(str, e)) for e in entries)})"
        for path, entries in found.gaps.items()
    ]


def record(found: "Fit | RunFit", weights: Weights) -> dict[str, Any]:
    """The same for env.json, nothing left out."""
    return {
        "path": weights.path,
        "fingerprint": fingerprint(weights.path),
        "changed": list(weights.changed),
        "taken": sorted(found.layout.specs.keys() - set(found.fresh)),
        "fresh": found.fresh,
        "gaps": found.gaps,
        "left": found.left,
    }


@dataclasses.dataclass(frozen=True)
class RunFit:
    """As `blocks.families.weights.Fit`, of the newest checkpoint of a run.

    theirs: layout of the run's model.
    """

    path: pathlib.Path
    layout: Layout
    theirs: Layout

    gaps: ClassVar[dict] = {}  # its arrays have all their layers

    @classmethod
    def of(cls, path: pathlib.Path, layout: Layout) -> "RunFit":
        """Raises ConfigError: its config cannot be read."""
        try:
            node = json.loads((path / "config.json").read_bytes())
        except (OSError, ValueError) as error:
            raise ConfigError(f"{KEY}: {path}: no config.json ({error})") from None
        build = maker(Config.parse(node))
        return cls(path, layout, layout_of(lambda: build(jnp.uint32(0))))

    @property
    def taken(self) -> list[str]:
        """Paths that both have, in one shape."""
        shapes = {path: spec.shape for path, spec in self.theirs.specs.items()}
        return [p for p, s in self.layout.specs.items() if shapes.get(p) == s.shape]

    @property
    def fresh(self) -> list[str]:
        return sorted(self.layout.specs.keys() - set(self.taken))

    @property
    def left(self) -> list[str]:
        return sorted(self.theirs.specs.keys() - set(self.taken))

    def check(self) -> None:
        """Raises FamilyError: names what does not fit."""
        if self.fresh or self.left:
            raise FamilyError(
                f"{self.path}: parameters that it lacks: {listed(self.fresh) or 'none'}; "
                f"of no use, or of another shape: {listed(self.left) or 'none'}"
            )

    def read(self, dtype) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Parameters as the run is evaluated, and state, in memory of their own."""
        from experiments.trained import trained

        model, _ = trained(self.path)
        params, rest = self.layout.split(model)
        state = {path_name(p): v for p, v in nnx.to_flat_state(self.layout.state)}
        rest = {
            path: np.array(x)
            for path, x in rest.items()
            if path in state and state[path].shape == x.shape
        }
        given = {}
        for path in self.taken:
            x = params[path]
            given[path] = aligned(x.shape, x.dtype if dtype is None else dtype)
            given[path][...] = np.asarray(x)
        return given, rest
