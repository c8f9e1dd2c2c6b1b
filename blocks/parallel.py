"""Attention and feed-forward side by side, as one branch."""

from collections.abc import Callable

import jax
from flax import nnx


class ParallelBranch(nnx.Module):
    """F(u) = sum of F_i(u): all read the same input.

    Source: GPT-J; arXiv 2204.02311 section 2 (PaLM). Each F_i draws from its own key.
    """

    def __init__(self, branches: dict[str, Callable], *, inner_norm=None, rngs):
        self.names = tuple(branches)
        key = rngs.params()
        inner = {} if inner_norm is None else {"inner_norm": inner_norm}
        for i, (name, make) in enumerate(branches.items()):
            own = nnx.Rngs(params=jax.random.fold_in(key, i))
            setattr(self, name, make(**inner, rngs=own))

    def __call__(self, u: jax.Array, shape: tuple[int, int]) -> jax.Array:
        """[tokens, d_model] -> the same; `shape` is (batch, seq)."""
        return sum(getattr(self, name)(u, shape) for name in self.names)
