"""Whether depth can be an input of a model's program."""

import functools

import jax
import jax.numpy as jnp
from flax import nnx

from blocks.grown_stack import GrownStack
from experiments.parts import TRACED, Part


def can_grow(model: Part) -> bool:
    """Whether `blocks.grown_stack` can hold the blocks of this model.

    It cannot where layers differ in structure, where a block has state or memory, or
    where the residual scheme keeps something for every layer; such models get a program
    per depth. A model that cannot be built at all is not growable either: the program
    that is tried next says why.
    """
    return _can_grow(model.static().replace(n_layers=2))


@functools.lru_cache(maxsize=1024)
def _can_grow(model: Part) -> bool:
    values = dict.fromkeys(_traced_paths(model, "model"), 1.0)
    vocabulary = {"vocab_size": 2} if "vocab_size" in dict(model.keywords) else {}

    def build(n_layers):
        make = model.build({**values, "model.n_layers": n_layers}, "model")
        stack = functools.partial(GrownStack, capacity=2)
        make(**vocabulary, stack=stack, rngs=nnx.Rngs(0))

    try:
        with jax.enable_x64(model.get("dtype") == "float64"):
            jax.eval_shape(build, jnp.int32(2))
    except (ValueError, TypeError):  # what jax raises for a traced size is a TypeError
        return False
    return True


def _traced_paths(part: Part, path: str) -> list[str]:
    found = []
    for key, value in part.keywords:
        if isinstance(value, Part):
            found += _traced_paths(value, f"{path}.{key}")
        elif value == TRACED:
            found.append(f"{path}.{key}")
    return found
