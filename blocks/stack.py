"""L blocks of one structure as one parameter tree under one scan."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

# What the backward pass keeps of a block. Even with memory to spare a checkpointed scan
# is faster on CPU than a plain one, which stacks every intermediate into big buffers.
# Beyond this depth recomputing everything is cheaper than storing the products.
KEEP_DOTS_UP_TO = 24

REMAT = ("auto", "dots", "nothing", "everything")


class Stack(nnx.Module):
    """`n_layers` blocks whose parameters carry a leading layer axis.

    Args:
        make_block: `make_block(layer=index, rngs=rngs)`, called once under vmap:
            `index` is traced, so the block may depend on it in values, not in shape.
        n_layers: depth.
        remat: what the backward pass keeps of each block: `dots` (matrix products),
            `nothing` (recompute all), `everything` (no checkpoint), or `auto`: `dots`
            up to 24 layers, `nothing` beyond.

    Layer i draws from fold_in(key, i), so it starts the same at every depth.
    """

    def __init__(
        self,
        make_block: Callable,
        n_layers: int,
        *,
        remat: str = "auto",
        rngs: nnx.Rngs,
    ):
        if remat not in REMAT:
            raise ValueError(
                f"remat: expected one of {', '.join(REMAT)}, got {remat!r}"
            )
        self.n_layers = n_layers
        if remat == "auto":
            remat = "dots" if n_layers <= KEEP_DOTS_UP_TO else "nothing"
        self.remat = remat
        index = jnp.arange(n_layers)
        keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(rngs.params(), index)
        self.layers = nnx.vmap(
            lambda key, layer: make_block(layer=layer, rngs=nnx.Rngs(params=key))
        )(keys, index)
        for _, node in nnx.iter_graph(self.layers):
            if isinstance(node, nnx.Variable):
                stacked = node.get_metadata().get("n_stacked", 0)
                node.set_metadata(n_stacked=stacked + 1)

    @property
    def tap_shape(self) -> tuple[int, int]:
        """Shape of `stream_taps`: (n_layers, sub-layers of a block)."""
        return self.n_layers, len(self.layers.names)

    def __call__(
        self, state, shape: tuple[int, int], *, stream_taps: jax.Array | None = None
    ):
        """Runs all blocks; returns the state and measurements [n_layers, sub-layers].

        Raises:
            ValueError: `stream_taps` is not of `tap_shape`.
        """
        if stream_taps is not None and stream_taps.shape != self.tap_shape:
            raise ValueError(
                f"stream_taps: expected shape {self.tap_shape} "
                f"(n_layers, sub-layers of a block), got {stream_taps.shape}"
            )
        graphdef, params, rest = nnx.split(self.layers, nnx.Param, ...)

        def body(state, xs):
            params, rest, index, taps = xs
            block = nnx.merge(graphdef, params, rest)
            state, measured = block(state, shape, index, taps)
            return state, (nnx.state(block, nnx.Not(nnx.Param)), measured)

        if self.remat != "everything":
            policy = (
                jax.checkpoint_policies.dots_saveable if self.remat == "dots" else None
            )
            # Inside a scan common sub-expressions cannot be merged across the loop.
            body = jax.checkpoint(body, policy=policy, prevent_cse=False)
        xs = (params, rest, jnp.arange(self.n_layers), stream_taps)
        state, (rest, measured) = jax.lax.scan(body, state, xs)
        nnx.update(self.layers, rest)  # running statistics, if any block has them
        return state, measured
