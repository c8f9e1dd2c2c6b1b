"""A stack whose depth is an input of the program, for measuring gradients."""

import functools
from collections.abc import Callable, Hashable, Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from blocks.parameters import path_name


class GrownStack:
    """`n_layers` blocks, with n_layers traced: one program for every depth.

    Same blocks and initial values as `blocks.stack.Stack`. They are made inside the
    forward loop, kept with the input of each block, and met again by a reverse loop that
    is written out, since JAX does not differentiate a loop of unknown length. Parameters
    are not arrays of the model: of their gradients only norms come out, through taps as
    in `blocks.taps`. It cannot be trained.

    Args:
        make_block, rngs: as for Stack.
        n_layers: depth, a traced integer up to `capacity`.
        capacity: layers that there is room for; costs memory, not time.
        kinds: must be None: all layers are alike.
        remat: accepted and without effect; every block is run again on the way back.
    """

    def __init__(
        self,
        make_block: Callable,
        n_layers: jax.Array,
        *,
        capacity: int,
        kinds: Sequence[Hashable] | None = None,
        remat: str = "auto",
        rngs: nnx.Rngs,
    ):
        del remat
        if kinds is not None:
            raise ValueError("a stack with a pattern over its layers cannot be grown")
        self.n_layers = n_layers
        self.capacity = capacity
        self._make_block = make_block
        self._key = rngs.params()
        block = nnx.eval_shape(lambda: self._block(jnp.int32(0)))
        self._graphdef, params, rest = nnx.split(block, nnx.Param, ...)
        if nnx.to_flat_state(rest):
            raise ValueError("a block with state beside its parameters cannot be grown")
        self._names = block.names
        if any(
            hasattr(getattr(block, name).branch, "remember") for name in block.names
        ):
            raise ValueError("a block with memory over layers cannot be grown")
        self._paths = [path_name(path) for path, _ in nnx.to_flat_state(params)]

    def taps(self, dtype) -> dict:
        """Zeros to pass as `stream_taps`.

        Their gradient is `stream` [capacity, sub-layers], the squared norm of
        dLoss/d(stream) after each sub-layer, and `params`, path -> [capacity], the
        squared norm of dLoss/dW of each block; zero from n_layers on.
        """
        return {
            "stream": jnp.zeros((self.capacity, len(self._names)), dtype),
            "params": {
                path: jnp.zeros((self.capacity,), dtype) for path in self._paths
            },
        }

    def __call__(self, state, shape: tuple[int, int], *, stream_taps: dict):
        """Runs the blocks; the state and measurements [capacity, sub-layers]."""
        n_layers = self.n_layers
        no_memory = dict.fromkeys(self._names)

        def run(params, state, index, taps):
            block = nnx.merge(self._graphdef, params)
            state, _, measured = block(state, no_memory, shape, index, taps)
            return state, measured

        def forward(state, taps):
            none = taps["stream"][0]
            make = functools.partial(self._params, dtype=none.dtype)
            params = jax.eval_shape(make, jnp.int32(0))
            _, measured = jax.eval_shape(run, params, state, jnp.int32(0), none)
            kept = jax.tree.map(
                lambda x: jnp.zeros((self.capacity, *x.shape), x.dtype),
                (params, state, measured),
            )

            def body(i, carry):
                state, kept = carry
                params = make(i)
                after, measured = run(params, state, i, none)
                return after, _put(kept, i, (params, state, measured))

            state, kept = jax.lax.fori_loop(0, n_layers, body, (state, kept))
            params, inputs, measured = kept
            return (state, measured), (params, inputs, taps)

        def backward(kept, cotangents):
            params, inputs, taps = kept
            grad_state, _ = cotangents  # measurements are looked at, not learned from

            def body(j, carry):
                grad_state, out = carry
                i = n_layers - 1 - j
                own, state = jax.tree.map(lambda x: x[i], (params, inputs))
                _, pull, _ = jax.vjp(
                    lambda own, state, tap: run(own, state, i, tap),
                    own,
                    state,
                    taps["stream"][0],
                    has_aux=True,
                )
                grad_own, grad_state, grad_tap = pull(grad_state)
                squares = {
                    path_name(path): jnp.sum(jnp.square(g[...])).astype(grad_tap.dtype)
                    for path, g in nnx.to_flat_state(grad_own)
                }
                return grad_state, _put(out, i, {"stream": grad_tap, "params": squares})

            zeros = jax.tree.map(jnp.zeros_like, taps)
            return jax.lax.fori_loop(0, n_layers, body, (grad_state, zeros))

        grown = jax.custom_vjp(lambda state, taps: forward(state, taps)[0])
        grown.defvjp(forward, backward)
        return grown(state, stream_taps)

    def _block(self, index: jax.Array) -> nnx.Module:
        key = jax.random.fold_in(self._key, index)
        return self._make_block(layer=index, like=0, rngs=nnx.Rngs(params=key))

    def _params(self, index: jax.Array, dtype) -> nnx.State:
        params = nnx.split(self._block(index), nnx.Param, ...)[1]
        return jax.tree.map(lambda x: x.astype(dtype), params)


def _put(buffers, i: jax.Array, values):
    """Writes `values` at place `i` of each buffer."""
    return jax.tree.map(lambda b, v: b.at[i].set(v), buffers, values)
