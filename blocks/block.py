"""A block: sub-layers in a row, each meeting the stream through a residual scheme."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from blocks.placement import Placement
from blocks.taps import gradient_tap, mean_square


class SubLayer(nnx.Module):
    """branch = out_norm(F(in_norm(u))), with F given by `make_branch`.

    Args:
        d_model: width of the stream.
        make_branch: `make_branch(rngs=rngs)` builds F; it gets `inner_norm=norm` too
            where the placement has one.
        norm: factory of this sub-layer's norms, `norm(width, rngs=rngs)`.
        placement: which of in_norm, inner_norm and out_norm exist.
    """

    def __init__(
        self,
        d_model: int,
        make_branch: Callable,
        *,
        norm: Callable,
        placement: Placement,
        rngs: nnx.Rngs,
    ):
        self.in_norm = norm(d_model, rngs=rngs) if placement.in_norm else None
        inner = {"inner_norm": norm} if placement.inner_norm else {}
        self.branch = make_branch(**inner, rngs=rngs)
        self.out_norm = norm(d_model, rngs=rngs) if placement.out_norm else None

    def __call__(self, u: jax.Array, shape: tuple[int, int]) -> jax.Array:
        """[tokens, d_model] -> [tokens, d_model]; `shape` is (batch, seq)."""
        if self.in_norm is not None:
            u = self.in_norm(u)
        branch = self.branch(u, shape)
        return branch if self.out_norm is None else self.out_norm(branch)


class Block(nnx.Module):
    """Sub-layers by name, in order, each with its joint of the residual scheme.

    Args:
        d_model: width of the stream.
        sublayers: name -> (make_branch, norm factory); the order is the order of
            execution. Each name draws from its own key, so that replacing one
            sub-layer leaves the initial values of the others as they were.
    """

    def __init__(
        self,
        d_model: int,
        sublayers: dict[str, tuple[Callable, Callable]],
        *,
        placement: Placement,
        residual,
        rngs: nnx.Rngs,
    ):
        self.names = tuple(sublayers)
        key = rngs.params()
        for i, (name, (make_branch, norm)) in enumerate(sublayers.items()):
            own = nnx.Rngs(params=jax.random.fold_in(key, i))
            sublayer = SubLayer(
                d_model, make_branch, norm=norm, placement=placement, rngs=own
            )
            joint = residual.make_joint(
                d_model, post_norm=norm if placement.post_norm else None, rngs=own
            )
            setattr(self, name, sublayer)
            setattr(self, f"{name}_joint", joint)

    def __call__(
        self,
        state,
        shape: tuple[int, int],
        index: jax.Array,
        stream_taps: jax.Array | None = None,
    ):
        """Runs the block once.

        Args:
            state: state of the residual scheme.
            shape: (batch, seq) of the flat tokens.
            index: number of the block, from 0.
            stream_taps: one scalar per sub-layer to measure, None to measure nothing.

        Returns:
            The new state, and a dict of arrays [n sub-layers]: `stream_mean_square`
            (of the state after the sub-layer) and `branch_mean_square`; empty when
            nothing is measured. The gradient in `stream_taps` is the squared norm of
            dLoss/d(state after the sub-layer).
        """
        streams, branches = [], []
        for i, name in enumerate(self.names):
            site = index * len(self.names) + i
            joint = getattr(self, f"{name}_joint")
            u = joint.read(state, site)
            branch = getattr(self, name)(u, shape)
            state = joint.write(state, u, branch, site)
            if stream_taps is not None:
                state = jax.tree.map(
                    lambda x, tap=stream_taps[i]: gradient_tap(x, tap), state
                )
                streams.append(
                    jnp.mean(
                        jnp.stack([mean_square(x) for x in jax.tree.leaves(state)])
                    )
                )
                branches.append(mean_square(branch))
        if stream_taps is None:
            return state, {}
        return state, {
            "stream_mean_square": jnp.stack(streams),
            "branch_mean_square": jnp.stack(branches),
        }
