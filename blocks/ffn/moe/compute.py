"""Running chosen tokens through stacked experts: two ways to the same numbers."""

import jax
import jax.numpy as jnp
from flax import nnx


def dense(
    experts: nnx.Module,
    x: jax.Array,
    weights: jax.Array,
    chosen: jax.Array,
    weigh_input: bool,
) -> jax.Array:
    """Every expert sees every token; what was not chosen is dropped.

    n_experts / top_k times the arithmetic, and any expert works, also one with state.
    See `blocks` for arguments and result.
    """
    graphdef, params, rest = nnx.split(experts, nnx.Param, ...)
    n_experts = jax.tree.leaves(params)[0].shape[0]
    is_chosen = chosen[:, :, None] == jnp.arange(n_experts)  # [tokens, top_k, experts]
    table = jnp.sum(jnp.where(is_chosen, weights[:, :, None], 0), axis=1)

    def one(params, rest, weight, used):
        expert = nnx.merge(graphdef, params, rest)
        if weigh_input:
            y = expert(_times(x, weight)).astype(weights.dtype)
        else:
            y = expert(x).astype(weights.dtype) * weight[:, None]
        # The strict choice: an expert with biases answers something to a zero.
        return jnp.where(used[:, None], y, 0), nnx.state(expert, nnx.Not(nnx.Param))

    y, rest = jax.vmap(one)(params, rest, table.T, jnp.any(is_chosen, axis=1).T)
    nnx.update(experts, rest)
    return jnp.sum(y, axis=0)


def blocks(
    experts: nnx.Module,
    x: jax.Array,
    weights: jax.Array,
    chosen: jax.Array,
    weigh_input: bool,
) -> jax.Array:
    """Each (token, choice) pair is computed once, in blocks of pairs of one expert.

    Pairs are sorted by expert and every expert's are padded to whole blocks: at most
    (pairs + n_experts * (block - 1)) / block of them, whatever the router does, so no
    token is ever dropped. A block runs with its expert's parameters under vmap.

    Args:
        experts: parts whose parameters have a leading expert axis, without state.
        x: [tokens, d_model].
        weights, chosen: [tokens, top_k].
        weigh_input: the weight multiplies the expert's input, not its output.

    Returns:
        sum over choices of weight * expert(x), [tokens, d_model], in the dtype of
        `weights`.
    """
    graphdef, params, rest = nnx.split(experts, nnx.Param, ...)
    n_experts = jax.tree.leaves(params)[0].shape[0]
    tokens, top_k = chosen.shape
    pairs = tokens * top_k
    size = block_size(pairs, n_experts)
    n_blocks = (pairs + n_experts * (size - 1)) // size

    expert_of_pair = chosen.reshape(-1)
    counts = jnp.zeros((n_experts,), jnp.int32).at[expert_of_pair].add(1)
    blocks_of = (counts + size - 1) // size
    first_pair = jnp.cumsum(counts) - counts  # of an expert, in sorted order
    first_row = (jnp.cumsum(blocks_of) - blocks_of) * size
    order = jnp.argsort(expert_of_pair)
    ahead = (first_row - first_pair)[expert_of_pair[order]]
    row_of_pair = (
        jnp.zeros((pairs,), jnp.int32)
        .at[order]
        .set(jnp.arange(pairs, dtype=jnp.int32) + ahead, unique_indices=True)
    )
    # Blocks beyond the last used one hold zeros, and nobody reads them.
    expert_of_block = jnp.minimum(
        jnp.searchsorted(jnp.cumsum(blocks_of), jnp.arange(n_blocks), side="right"),
        n_experts - 1,
    )

    # Repeated, then permuted: the gradient is a sum over choices, not a scatter.
    rows = jnp.repeat(x, top_k, axis=0)
    if weigh_input:
        rows = _times(rows, weights.reshape(-1))
    padded = jnp.zeros((n_blocks * size, x.shape[-1]), x.dtype)
    padded = padded.at[row_of_pair].set(rows, unique_indices=True)

    def one(params, rows):
        return nnx.merge(graphdef, params, rest)(rows)

    own = jax.tree.map(lambda p: p[expert_of_block], params)
    y = jax.vmap(one)(own, padded.reshape(n_blocks, size, -1))
    y = y.reshape(n_blocks * size, -1).at[row_of_pair].get(unique_indices=True)
    y = y.reshape(tokens, top_k, -1).astype(weights.dtype)
    return jnp.sum(y if weigh_input else y * weights[:, :, None], axis=1)


def block_size(pairs: int, n_experts: int) -> int:
    """Half of a balanced expert's pairs, as a power of two between 8 and 128.

    Padding is then at most half of the work; below 8 rows, and with far more blocks
    than experts, copying kernels costs more than multiplying.
    """
    half = max(1, pairs // (2 * n_experts))
    return min(128, max(8, 2 ** (half.bit_length() - 1)))


def _times(x: jax.Array, weight: jax.Array) -> jax.Array:
    """x * weight[:, None], in the dtype of weight, rounded to that of x."""
    return (x.astype(weight.dtype) * weight[:, None]).astype(x.dtype)


COMPUTE = {"blocks": blocks, "dense": dense}
