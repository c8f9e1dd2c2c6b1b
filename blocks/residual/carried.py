"""Something that goes from one sub-layer of a block to a later one, beside the stream."""

import dataclasses
from typing import Any

import jax
from flax import nnx


class Beside:
    """What is handed on. For JAX all are equal: it is no part of the shape of a state."""

    def __init__(self, value: Any = None):
        self.value = value

    def __eq__(self, other) -> bool:
        return isinstance(other, Beside)

    def __hash__(self) -> int:
        return 0


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Carried:
    """A stream, and something beside it that is there from sub-layer to sub-layer.

    Only `x` is a leaf, so what measures the streams of a state (`blocks.block`) does not
    take `beside` for one. The last sub-layer of a block leaves nothing in it: it does not
    go through the scan over blocks.
    """

    x: jax.Array
    beside: Beside = dataclasses.field(
        default_factory=Beside, metadata={"static": True}
    )


class CarriedEnds(nnx.Module):
    """The stream, with nothing beside it."""

    def open(self, x: jax.Array) -> Carried:
        return Carried(x)

    def close(self, state: Carried) -> jax.Array:
        return state.x
