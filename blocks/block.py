"""A block: sub-layers in a row, each meeting the stream through a residual scheme."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from blocks.cache import Cache, cached
from blocks.looking import taking_notes, watching_norms
from blocks.norms.at_site import make_norm
from blocks.placement import Placement
from blocks.rows import stacked
from blocks.site import Site
from blocks.taps import gradient_tap, mean_square


class SubLayer(nnx.Module):
    """branch = out_norm(F(in_norm(u))), with F given by `make_branch`.

    Args:
        d_model: width of the stream.
        make_branch: `make_branch(rngs=rngs)` builds F; it gets `inner_norm=norm` too
            where the placement has one.
        norm: factory of this sub-layer's norms, `norm(width, rngs=rngs)`.
        placement: which of in_norm, inner_norm and out_norm exist.
        site: name of the sub-layer, for norms that depend on it.

    F(u, shape) -> branch. An F with memory has `remember(u, shape, memory, layer)` ->
    (branch, memory) instead, and `first_memory(n_tokens, dtype)`: what it finds in the
    first block. Memory goes from a sub-layer to the one of the same name in the next
    block (value residuals). Where a text goes on, an F that lets tokens meet takes
    `cache` too (`blocks.cache`).
    """

    def __init__(
        self,
        d_model: int,
        make_branch: Callable,
        *,
        norm: Callable,
        placement: Placement,
        site: str,
        rngs: nnx.Rngs,
    ):
        make = functools.partial(make_norm, norm, d_model, site, rngs=rngs)
        self.in_norm = make() if placement.in_norm else None
        inside = functools.partial(make_norm, norm, site="inner")
        inner = {"inner_norm": inside} if placement.inner_norm else {}
        self.branch = make_branch(**inner, rngs=rngs)
        self.out_norm = make() if placement.out_norm else None

    def first_memory(self, n_tokens: int, dtype):
        """What `__call__` is given in the first block; None for an F without memory."""
        if not hasattr(self.branch, "remember"):
            return None
        return self.branch.first_memory(n_tokens, dtype)

    def __call__(
        self,
        u: jax.Array,
        shape: tuple[int, int],
        memory,
        layer,
        cache: Cache | None = None,
    ):
        """[tokens, d_model] -> the same, and memory; `shape` is (batch, seq)."""
        if self.in_norm is not None:
            u = self.in_norm(u)
        more = cached(self.branch, cache)
        if hasattr(self.branch, "remember"):
            branch, memory = self.branch.remember(u, shape, memory, layer, **more)
        else:
            branch = self.branch(u, shape, **more)
        return branch if self.out_norm is None else self.out_norm(branch), memory


class Block(nnx.Module):
    """Sub-layers by name, in order, each with its joint of the residual scheme.

    Args:
        d_model: width of the stream.
        sublayers: name -> (make_branch, norm factory, placement); the order is the
            order of execution. Each name draws from its own key, so that replacing one
            sub-layer leaves the initial values of the others as they were.
        layer, n_layers: index of the block and depth of the model; may be traced.
    """

    def __init__(
        self,
        d_model: int,
        sublayers: dict[str, tuple[Callable, Callable, Placement]],
        *,
        residual,
        layer,
        n_layers,
        rngs: nnx.Rngs,
    ):
        self.names = tuple(sublayers)
        self.looks = ()  # what it measures beside the stream: `blocks.looking`
        key = rngs.params()
        for i, (name, (make_branch, norm, placement)) in enumerate(sublayers.items()):
            own = nnx.Rngs(params=jax.random.fold_in(key, i))
            sublayer = SubLayer(
                d_model,
                make_branch,
                norm=norm,
                placement=placement,
                site=name,
                rngs=own,
            )
            joint = residual.make_joint(
                d_model,
                site=Site(name, layer, n_layers, i, len(sublayers)),
                post_norm=norm if placement.post_norm else None,
                rngs=own,
            )
            setattr(self, name, sublayer)
            setattr(self, f"{name}_joint", joint)

    def first_memory(self, n_tokens: int, dtype) -> dict:
        """Memory of the sub-layers as the first block finds it."""
        return {
            name: getattr(self, name).first_memory(n_tokens, dtype)
            for name in self.names
        }

    def __call__(
        self,
        state,
        memory: dict,
        shape: tuple[int, int],
        index: jax.Array,
        stream_taps: jax.Array | None = None,
        cache: Cache | None = None,
    ):
        """Runs the block once.

        Args:
            state: state of the residual scheme.
            memory: of the sub-layers, by name.
            shape: (batch, seq) of the flat tokens.
            index: number of the block, from 0.
            stream_taps: one scalar per sub-layer to measure, None to measure nothing.
            cache: of the block, where the tokens go on behind earlier ones.

        Returns:
            The new state, the new memory, and a dict of arrays [n sub-layers]:
            `stream_mean_square` (of the state after the sub-layer),
            `branch_mean_square`, `stream_cosine` (of the state before and after it), and
            what the joints show of themselves; and what `blocks.looking` asks for,
            `site/<metric>` [n sub-layers] and `attention_logit_max` [n_heads]. Empty
            when nothing is measured. The gradient in `stream_taps` is the squared norm
            of dLoss/d(state after the sub-layer).
        """
        memory = dict(memory)
        rows, of_block = [], {}
        for i, name in enumerate(self.names):
            site = index * len(self.names) + i
            joint, sublayer = getattr(self, f"{name}_joint"), getattr(self, name)
            with (
                watching_norms(sublayer, joint, "norms" in self.looks) as row,
                taking_notes("logits" in self.looks) as notes,
            ):
                u, kept = joint.read(state, site)
                more = {} if cache is None else {"cache": cache.of(name)}
                branch, memory[name] = sublayer(u, shape, memory[name], index, **more)
                before = state
                state = joint.write(state, branch, kept, site)
            rows.append(row)
            of_block |= notes
            if stream_taps is None:
                continue
            tap = functools.partial(gradient_tap, tap=stream_taps[i])
            # Of a state that keeps more than streams the joint says what is one.
            over_streams = getattr(joint, "map_stream", jax.tree.map)
            state = over_streams(tap, state)
            squares = []
            over_streams(lambda x, to=squares: to.append(mean_square(x)), state)
            shown = joint.look(kept) if hasattr(joint, "look") else {}
            row |= {
                "stream_mean_square": jnp.mean(jnp.stack(squares)),
                "branch_mean_square": mean_square(branch),
                "stream_cosine": stream_cosine(before, state),
                **jax.lax.stop_gradient(shown),
            }
        return state, memory, {**stacked(rows), **of_block}


def stream_cosine(before, after) -> jax.Array:
    """Mean over tokens, and over streams, of cos(before, after) of two states.

    In float32 or wider; a vector of zeros has the cosine 0. Of a state of several arrays
    the first counts, the stream itself: what a history keeps does not turn. Reads two
    states once, in measured steps only.
    """
    a, b = (jax.lax.stop_gradient(jax.tree.leaves(s)[0]) for s in (before, after))
    wide = jnp.promote_types(a.dtype, jnp.float32)
    a, b = a.astype(wide), b.astype(wide)
    tiny = jnp.finfo(wide).tiny
    squares = [jnp.sum(jnp.square(x), axis=-1) for x in (a, b)]
    scales = [jax.lax.rsqrt(jnp.maximum(square, tiny)) for square in squares]
    return jnp.mean(jnp.sum(a * b, axis=-1) * scales[0] * scales[1])
