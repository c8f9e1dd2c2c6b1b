"""Attention and feed-forward side by side, as one branch."""

from collections.abc import Callable

import jax
from flax import nnx

from blocks.cache import Cache, cached
from blocks.norms.at_site import make_norm


class ParallelBranch(nnx.Module):
    """F(u) = sum of F_i(norm_i(u)): all read the same input.

    Without `norms` the sub-layer has one norm in front for all (GPT-J, PaLM, Cohere);
    with them each branch has its own (GPT-NeoX).

    Source: GPT-J; arXiv 2204.02311 section 2 (PaLM); transformers 5.24.0
    modeling_gpt_neox.py. Each F_i draws from its own key.
    """

    def __init__(
        self,
        branches: dict[str, Callable],
        *,
        d_model: int | None = None,
        norms: dict[str, Callable] | None = None,
        inner_norm=None,
        rngs,
    ):
        """Args:
        branches: name -> make(rngs=rngs); with inner_norm=norm too where it is given.
        d_model: width of the input; needed with `norms`.
        norms: name -> factory of the norm in front of that branch.
        """
        self.names = tuple(branches)
        key = rngs.params()
        inner = {} if inner_norm is None else {"inner_norm": inner_norm}
        for i, (name, make) in enumerate(branches.items()):
            own = nnx.Rngs(params=jax.random.fold_in(key, i))
            setattr(self, name, make(**inner, rngs=own))
            norm = (
                None
                if norms is None
                else make_norm(norms[name], d_model, name, rngs=own)
            )
            setattr(self, f"{name}_norm", norm)

    def __call__(
        self, u: jax.Array, shape: tuple[int, int], cache: Cache | None = None
    ) -> jax.Array:
        """[tokens, d_model] -> the same; `shape` is (batch, seq)."""
        return sum(
            getattr(self, name)(self._input(name, u), shape, **self._more(name, cache))
            for name in self.names
        )

    def _more(self, name: str, cache: Cache | None) -> dict[str, Cache]:
        return {} if cache is None else cached(getattr(self, name), cache.of(name))

    def _input(self, name: str, u: jax.Array) -> jax.Array:
        norm = getattr(self, f"{name}_norm")
        return u if norm is None else norm(u)

    # -- branches with memory (blocks.block.SubLayer) --------------------------------

    @property
    def remember(self) -> Callable:
        """Exists where a branch has a memory."""
        if not self._remembering:
            raise AttributeError("no branch has a memory")
        return self._remember

    def first_memory(self, n_tokens: int, dtype) -> dict:
        return {
            name: getattr(self, name).first_memory(n_tokens, dtype)
            for name in self._remembering
        }

    @property
    def _remembering(self) -> list[str]:
        return [n for n in self.names if hasattr(getattr(self, n), "remember")]

    def _remember(
        self,
        u: jax.Array,
        shape: tuple[int, int],
        memory: dict,
        layer,
        cache: Cache | None = None,
    ):
        memory, branches = dict(memory), []
        for name in self.names:
            branch = getattr(self, name)
            own = self._input(name, u)
            more = self._more(name, cache)
            if name in memory:
                y, memory[name] = branch.remember(
                    own, shape, memory[name], layer, **more
                )
            else:
                y = branch(own, shape, **more)
            branches.append(y)
        return sum(branches), memory
