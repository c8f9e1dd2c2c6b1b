"""L blocks as parameter trees with a layer axis, run under a scan."""

from collections.abc import Callable, Hashable, Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from blocks.cache import Cache
from blocks.positions.place import Place
from blocks.rows import joined, stacked
from blocks.segments import Segment, segments

# What the backward pass keeps of a block. Even with memory to spare a checkpointed scan
# is faster on CPU than a plain one, which stacks every intermediate into big buffers.
# Beyond this depth recomputing everything is cheaper than storing the products.
KEEP_DOTS_UP_TO = 24

REMAT = ("auto", "dots", "nothing", "everything")


class Stack(nnx.Module):
    """`n_layers` blocks whose parameters carry a leading layer axis.

    Args:
        make_block: `make_block(layer=index, like=i, rngs=rngs)`, called once under vmap
            for all layers of the kind of layer `i`: `index` is traced, so the block
            may depend on it in values, not in shape.
        n_layers: depth.
        kinds: one label per layer; layers of equal label have equal structure. Each
            repeated pattern of labels is one scan. None: all are alike.
        remat: what the backward pass keeps of each block: `dots` (matrix products),
            `nothing` (recompute all), `everything` (no checkpoint), or `auto`: `dots`
            up to 24 layers, `nothing` beyond.

    Layer i draws from fold_in(key, i), so it starts the same at every depth. Where all
    layers are alike their parameters are in `layers`; else position p of segment s is
    `layers_s_p`.
    """

    def __init__(
        self,
        make_block: Callable,
        n_layers: int,
        *,
        kinds: Sequence[Hashable] | None = None,
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
        self.segments = tuple(segments(kinds or [0] * n_layers))
        key = rngs.params()
        for name, layers in self.places.items():
            setattr(self, name, _stacked(make_block, layers, key))

    @property
    def places(self) -> dict[str, range]:
        """Attribute that holds parameters -> the layers they belong to, in order."""
        if len(self.segments) == 1 and self.segments[0].period == 1:
            return {"layers": range(self.n_layers)}
        return {
            f"layers_{s}_{p}": segment.layers(p)
            for s, segment in enumerate(self.segments)
            for p in range(segment.period)
        }

    @property
    def tap_shape(self) -> tuple[int, int]:
        """Shape of `stream_taps`: (n_layers, sub-layers of a block)."""
        first = getattr(self, next(iter(self.places)))
        return self.n_layers, len(first.names)

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
        state, rows, _ = self._through(state, shape, stream_taps, None, None)
        return state, rows

    def continued(
        self, state, shape: tuple[int, int], place: Place, kept: dict | None = None
    ):
        """Runs all blocks over tokens that go on behind earlier ones.

        Args:
            state, shape: as in `__call__`.
            place: positions of the tokens.
            kept: what the call before returned; None at the first tokens of a text.

        Returns:
            The state, and what the blocks keep: name of `places` -> arrays with a
            leading axis over its layers.
        """
        state, _, kept = self._through(state, shape, None, place, kept)
        return state, kept

    def _through(self, state, shape, stream_taps, place, kept):
        names = iter(self.places)
        batch, seq = shape
        dtype = jax.tree.leaves(state)[0].dtype
        memory, rows, new = None, [], {}
        for segment in self.segments:
            own = [next(names) for _ in range(segment.period)]
            blocks = [getattr(self, name) for name in own]
            before = [None if kept is None else kept[name] for name in own]
            if memory is None:
                memory = _one(blocks[0]).first_memory(batch * seq, dtype)
            taps = (
                None
                if stream_taps is None
                else stream_taps[segment.start : segment.stop]
            )
            (state, memory), measured, after = self._run(
                segment, blocks, (state, memory), shape, taps, place, before
            )
            rows.append(measured)
            new |= zip(own, after, strict=True)
        lengths = [segment.stop - segment.start for segment in self.segments]
        return state, joined(rows, lengths), new

    def _run(self, segment: Segment, blocks: list, carry, shape, taps, place, kept):
        """One segment: a scan over its repeats, each running the blocks of a period."""
        period, repeats = segment.period, segment.repeats
        split = [nnx.split(block, nnx.Param, ...) for block in blocks]
        graphdefs = [graphdef for graphdef, _, _ in split]
        arrays = [(params, rest) for _, params, rest in split]
        index = segment.start + jnp.arange(period * repeats).reshape(repeats, period)
        if taps is not None:
            taps = taps.reshape(repeats, period, -1)

        def body(carry, xs):
            state, memory = carry
            arrays, index, taps, kept = xs
            rests, rows, new = [], [], []
            for p, (graphdef, own) in enumerate(zip(graphdefs, arrays, strict=True)):
                block = nnx.merge(graphdef, *own)
                tap = None if taps is None else taps[p]
                more = {} if place is None else {"cache": Cache(place, kept[p])}
                state, memory, measured = block(
                    state, memory, shape, index[p], tap, **more
                )
                rests.append(nnx.state(block, nnx.Not(nnx.Param)))
                rows.append(measured)
                new.append(more["cache"].new if more else None)
            return (state, memory), (rests, stacked(rows), new)

        if self.remat != "everything":
            policy = (
                jax.checkpoint_policies.dots_saveable if self.remat == "dots" else None
            )
            # Inside a scan common sub-expressions cannot be merged across the loop.
            body = jax.checkpoint(body, policy=policy, prevent_cse=False)
        xs = (arrays, index, taps, kept)
        carry, (rests, rows, new) = jax.lax.scan(body, carry, xs)
        for block, rest in zip(blocks, rests, strict=True):
            nnx.update(block, rest)  # running statistics, if any block has them
        rows = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), rows)
        return carry, rows, new


def _stacked(make_block: Callable, layers: range, key: jax.Array) -> nnx.Module:
    index = jnp.arange(layers.start, layers.stop, layers.step)
    keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, index)
    stacked = nnx.vmap(
        lambda key, layer: make_block(
            layer=layer, like=layers.start, rngs=nnx.Rngs(params=key)
        )
    )(keys, index)
    for _, node in nnx.iter_graph(stacked):
        if isinstance(node, nnx.Variable):
            copies = node.get_metadata().get("n_stacked", 0)
            node.set_metadata(n_stacked=copies + 1)
    return stacked


def _one(stacked: nnx.Module) -> nnx.Module:
    """The first of the stacked blocks."""
    graphdef, arrays = nnx.split(stacked)
    return nnx.merge(graphdef, jax.tree.map(lambda x: x[0], arrays))
