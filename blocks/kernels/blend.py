"""Blends of stacked arrays with weights of their own for every token: one pass each.

    y[i, t] = sum_j weights[i, j, t] * a[j, t]        a: the stacks, one after the other

Reading residual streams is such a blend (one output), mixing and writing them another
(a branch is one more input). Bound by memory on a GPU and a TPU: what matters is how
often a stream is read. The kernels read every stack once and keep all sums in registers,
also in the backward pass, where XLA alone makes a reduction of every product of two
streams.

    explicit   the twin, in plain JAX; what runs on a CPU
    blend      the kernel where the program is compiled for CUDA (Pallas to Triton) or a
               TPU (Pallas to Mosaic), `explicit` elsewhere
"""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from blocks.kernels.tiles import TILES, padded, tile

DTYPES = ("float32", "bfloat16", "float16")

Stacks = tuple[jax.Array, ...]


def explicit(weights: jax.Array, stacks: Stacks) -> jax.Array:
    """The blend, summed in float32 or wider and rounded to the dtype of the stacks.

    weights [n_out, n_in, tokens], stacks [n, tokens, width] with n_in arrays in all;
    returns [n_out, tokens, width]. Sums are written out: on CPU the gradient of an
    einsum takes many times as long.
    """
    dtype = stacks[0].dtype
    wide = jnp.promote_types(dtype, jnp.float32)
    arrays = [a.astype(wide) for stack in stacks for a in stack]
    rows = [
        sum(w[:, None] * a for w, a in zip(row, arrays, strict=True)) for row in weights
    ]
    return jnp.stack(rows).astype(dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def blend(weights: jax.Array, stacks: Stacks, interpreted: str | None = None):
    """`explicit(weights, stacks)` by a kernel, in both directions.

    interpreted: a key of `blocks.kernels.tiles.TILES`: run its kernel in Pallas's
        interpreter, on any machine and slowly, to compare the two.

    Raises:
        ValueError: the kernels have no such dtype.
    """
    return _forward(weights, stacks, interpreted)[0]


def _forward(weights, stacks, interpreted):
    dtype = stacks[0].dtype
    if dtype not in DTYPES:
        raise ValueError(
            f"kernel: the kernels take {', '.join(DTYPES)}, got {dtype}; leave it null"
        )
    y = _on_platform(_blended, explicit, interpreted, weights, stacks)
    return y, (weights, stacks)


def _backward(interpreted, kept, g):
    return _on_platform(_pulled, _explicit_pulled, interpreted, *kept, g)


blend.defvjp(_forward, _backward)


def _on_platform(kernel, twin, interpreted, *args):
    if interpreted is not None:
        return kernel(*args, platform=interpreted, interpret=True)
    kernels = {p: functools.partial(kernel, platform=p) for p in TILES}
    return jax.lax.platform_dependent(*args, **kernels, default=twin)


def _explicit_pulled(weights, stacks, g):
    return jax.vjp(explicit, weights, stacks)[1](g)


# -- the kernels -----------------------------------------------------------------------
# Weights are [tokens, n_out * n_in] in there: a column of them meets rows of features.


def _blended(weights, stacks, *, platform, interpret=False):
    n_out, n_in, tokens = weights.shape
    width = stacks[0].shape[-1]
    columns, stacks, grid, of_stack, of_columns = _laid_out(weights, stacks, platform)

    def kernel(columns, *refs):
        *stacks, y = refs
        arrays = [_at(s, i) for s in stacks for i in range(s.shape[0])]
        for i in range(n_out):
            at = [_column(columns, i * n_in + j) for j in range(n_in)]
            total = sum(w * a for w, a in zip(at, arrays, strict=True))
            y[i, :, :] = total.astype(y.dtype)

    shape = (n_out, *stacks[0].shape[1:])
    y = pl.pallas_call(
        kernel,
        grid=grid,
        in_specs=[of_columns, *map(of_stack, stacks)],
        out_specs=of_stack(jax.ShapeDtypeStruct(shape, stacks[0].dtype)),
        out_shape=jax.ShapeDtypeStruct(shape, stacks[0].dtype),
        **_options(platform, interpret),
    )(columns, *stacks)
    return y[:, :tokens, :width]


def _pulled(weights, stacks, g, *, platform, interpret=False):
    """Cotangents of weights and stacks, from one reading of the stacks and of g."""
    n_out, n_in, tokens = weights.shape
    width = g.shape[-1]
    columns, (g, *stacks), grid, of_stack, of_columns = _laid_out(
        weights, (g, *stacks), platform
    )

    def kernel(columns, g, *refs):
        n = len(refs) // 2
        stacks, d_stacks, d_columns = refs[:n], refs[n:-1], refs[-1]
        upstream = [_at(g, i) for i in range(n_out)]
        j = 0
        for stack, d_stack in zip(stacks, d_stacks, strict=True):
            for k in range(stack.shape[0]):
                array = _at(stack, k)
                total = 0.0
                for i in range(n_out):
                    at = i * n_in + j
                    total += _column(columns, at) * upstream[i]
                    partial = jnp.sum(upstream[i] * array, axis=-1, keepdims=True)
                    d_columns[:, pl.ds(at, 1)] = partial
                d_stack[k, :, :] = total.astype(d_stack.dtype)
                j += 1

    # A sum over features is one of partial sums, a row of them for every tile.
    partial = (grid[1], *columns.shape)
    *d_stacks, d_columns = pl.pallas_call(
        kernel,
        grid=grid,
        in_specs=[of_columns, of_stack(g), *map(of_stack, stacks)],
        out_specs=[
            *map(of_stack, stacks),
            pl.BlockSpec((None, *of_columns.block_shape), lambda t, d: (d, t, 0)),
        ],
        out_shape=[
            *(jax.ShapeDtypeStruct(s.shape, s.dtype) for s in stacks),
            jax.ShapeDtypeStruct(partial, jnp.float32),
        ],
        **_options(platform, interpret),
    )(columns, g, *stacks)
    d_columns = jnp.sum(d_columns, axis=0)[:tokens]
    d_weights = d_columns.T.reshape(weights.shape).astype(weights.dtype)
    return d_weights, tuple(d[:, :tokens, :width] for d in d_stacks)


def _laid_out(weights, stacks, platform):
    """Operands padded to whole tiles, the grid of tiles, and the tile of each operand."""
    tokens = stacks[0].shape[1]
    sizes = TILES[platform]
    stacks = [padded(padded(s, 1, sizes.tokens), 2, sizes.width) for s in stacks]
    columns = padded(weights.reshape(-1, tokens).T, 0, sizes.tokens)
    rows = tile(stacks[0].shape[1], sizes.most_tokens)
    features = tile(stacks[0].shape[2], sizes.most_width)
    grid = (stacks[0].shape[1] // rows, stacks[0].shape[2] // features)

    def of_stack(stack):
        return pl.BlockSpec((stack.shape[0], rows, features), lambda t, d: (0, t, d))

    of_columns = pl.BlockSpec((rows, columns.shape[1]), lambda t, d: (t, 0))
    return columns.astype(jnp.float32), stacks, grid, of_stack, of_columns


def _at(stack, i: int):
    return stack[i, :, :].astype(jnp.float32)


def _column(columns, i: int):
    return columns[:, pl.ds(i, 1)]


def _options(platform: str, interpret: bool) -> dict:
    if interpret:
        return {"interpret": True}
    if platform == "cuda":
        return {"compiler_params": triton.CompilerParams(num_warps=4, num_stages=1)}
    return {}
