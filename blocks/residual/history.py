"""A stream, and beside it what earlier sub-layers or blocks have given."""

import jax
import jax.numpy as jnp
from flax import nnx


def fixed_depth(n_layers, name: str) -> int:
    """Refuses a traced depth, for schemes that keep an array per layer.

    Raises:
        ValueError: the depth is an input of the program.
    """
    if not isinstance(n_layers, int):
        raise ValueError(
            f"{name} keeps an array per layer: expected a depth that is fixed when the "
            "program is compiled, got a traced one"
        )
    return n_layers


class HistoryEnds(nnx.Module):
    """State: x [tokens, d_model], and sources [n_sources, tokens, d_model].

    The first source is the embedding, the others are zero until they are written.
    """

    def __init__(self, n_sources: int):
        self.n_sources = n_sources

    def open(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        sources = jnp.zeros((self.n_sources, *x.shape), x.dtype)
        return x, sources.at[0].set(x)

    def close(self, state: tuple[jax.Array, jax.Array]) -> jax.Array:
        return state[0]
