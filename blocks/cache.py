"""What is kept of earlier tokens, so that a text can go on token by token."""

import inspect

import jax
import jax.numpy as jnp
from flax import nnx

from blocks.positions.place import Place


class Cache:
    """What a part keeps of the tokens before, and leaves for those behind.

    Made anew for every layer inside a trace, and passed to its parts; once they have run
    `new` is what they keep, to be given back with the tokens that follow.

    Args:
        place: positions of the tokens at hand.
        kept: `new` of the call before; None at the first tokens of a text.

    A part that lets tokens meet, and can go on with a text, takes `cache=None` where it
    is called. It then sees the tokens at hand alone, and gets the others from here.
    """

    def __init__(self, place: Place, kept: dict | None = None):
        self.place = place
        self._kept = {} if kept is None else kept
        self.new: dict = {}

    def of(self, name: str) -> "Cache":
        """The cache of a part inside."""
        inside = Cache(self.place, self._kept.get(name))
        self.new[name] = inside.new
        return inside

    def appended(self, name: str, x: jax.Array) -> jax.Array:
        """Keeps an array [batch, heads, seq, width] of tokens, behind what there is.

        Returns:
            [batch, heads, length, width]: of all tokens so far, zeros from there on.
        """
        room = (*x.shape[:2], self.place.length, x.shape[3])
        before = self.get(name, jnp.zeros(room, x.dtype))
        whole = jax.lax.dynamic_update_slice_in_dim(before, x, self.place.start, axis=2)
        self.new[name] = whole
        return whole

    def get(self, name: str, first: jax.Array) -> jax.Array:
        """What was kept under a name; `first` at the first tokens."""
        return self._kept.get(name, first)

    def put(self, name: str, value: jax.Array) -> None:
        """Keeps an array whose size does not depend on the number of tokens."""
        self.new[name] = value


def cached(part: nnx.Module, cache: Cache | None) -> dict[str, Cache]:
    """The keyword that gives a part its cache; none where it keeps nothing."""
    return {"cache": cache} if cache is not None and takes_cache(part) else {}


def takes_cache(part: nnx.Module) -> bool:
    """Whether a part can go on with a text: it takes `cache` where it is called."""
    run = getattr(part, "remember", part.__call__)
    return "cache" in inspect.signature(run).parameters
