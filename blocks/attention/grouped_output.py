"""From heads to the stream through a narrow layer, group of heads by group of heads."""

from collections.abc import Callable

import jax
from flax import nnx

from blocks.linear import Linear


class GroupedOutput(nnx.Module):
    """y = o(concatenated over groups g of groups[g](heads of g))

    Where all heads together are much wider than the stream, one map from them would
    cost more than the rest of the attention.

    Sub-modules:
        groups  Linear [width / n_groups, rank]    use "value", n_groups of them
                stacked, counted in `n_stacked`
        o       Linear [n_groups * rank, d_model]  use "output"

    Source: DeepSeek-V4; transformers 5.24.0 modeling_deepseek_v4.py
    (DeepseekV4GroupedLinear).
    """

    def __init__(
        self,
        width: int,
        d_model: int,
        *,
        n_groups: int,
        rank: int,
        linear: Callable = Linear,
        rngs: nnx.Rngs,
    ):
        """Args:
        width: of all heads together.
        d_model: width of the residual stream.
        n_groups: of heads, in order.
        rank: width that each group is brought to.
        """
        self.n_groups = n_groups

        def make(key):
            own = nnx.Rngs(params=key)
            return linear(width // n_groups, rank, use="value", bias=False, rngs=own)

        keys = jax.random.split(rngs.params(), n_groups)
        self.groups = nnx.vmap(make)(keys)
        for _, node in nnx.iter_graph(self.groups):
            if isinstance(node, nnx.Variable):
                node.set_metadata(n_stacked=node.get_metadata().get("n_stacked", 0) + 1)
        self.o = linear(n_groups * rank, d_model, use="output", bias=False, rngs=rngs)

    def __call__(self, y: jax.Array) -> jax.Array:
        """[tokens, width] -> [tokens, d_model]."""
        tokens = len(y)
        graphdef, state = nnx.split(self.groups)
        one = jax.vmap(
            lambda state, y: nnx.merge(graphdef, state)(y), in_axes=(0, 1), out_axes=1
        )
        return self.o(
            one(state, y.reshape(tokens, self.n_groups, -1)).reshape(tokens, -1)
        )
