"""Fixup and T-Fixup: initial values that stand in for normalization."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from blocks.checks import check_choice
from blocks.residual.add import Add, norm_or_none
from blocks.residual.constants import is_on_the_value_path
from blocks.residual.factor import times
from blocks.residual.learned import learned_factor
from blocks.site import Site


class Fixup(Add):
    """y = post_norm(x + branch_scale * F(x + shift) + bias); the last kernel starts at 0.

    Initial kernels of v and of the feed-forward but its last are multiplied by
    n_sublayers^(-1 / (2 n_matrices - 2)); output kernels are zero, so that every branch
    is. q and k start as the initializer has them.

    Parameters (float32), role in brackets:
        shift         [1]  init 0  [bias]
        branch_scale  [1]  init 1  [scale]
        bias          [1]  init 0  [bias]

    Source: arXiv 1901.09321 section 3, written for convolutions; hongyi-zhang/Fixup.
    Departure: the scalar biases inside a branch (before its activation and its last
    map) are left out, and the head starts as the initializer has it, not at zero.
    """

    traced = ()

    @staticmethod
    def check(*, n_matrices: int = 2) -> None:
        if n_matrices < 2:
            raise ValueError(f"n_matrices must be at least 2, got {n_matrices}")

    def __init__(self, *, n_matrices: int = 2):
        """Args:
        n_matrices: maps that one path through a branch meets: 2; 3 where gate and up
            of a feed-forward are multiplied.
        """
        self.check(n_matrices=n_matrices)
        super().__init__()
        self.n_matrices = n_matrices

    def init_factor(self, use: str, site: Site):
        if use == "output":
            return 0.0
        if not is_on_the_value_path(use, site):
            return 1.0
        return site.n_sublayers ** (-1 / (2 * self.n_matrices - 2))

    def make_joint(
        self,
        d_model: int,
        *,
        site: Site,
        post_norm: Callable | None = None,
        rngs: nnx.Rngs,
    ) -> "FixupJoint":
        return FixupJoint(norm_or_none(post_norm, d_model, site, rngs))


class FixupJoint(nnx.Module):
    def __init__(self, post_norm: nnx.Module | None):
        self.post_norm = post_norm
        self.shift = _offset()
        self.branch_scale = learned_factor(1, 1.0)
        self.bias = _offset()

    def read(self, state: jax.Array, i: jax.Array):
        del i
        return state + self.shift[...].astype(state.dtype), None

    def write(self, state: jax.Array, branch: jax.Array, kept, i: jax.Array):
        del kept, i
        y = state + times(self.branch_scale, branch) + self.bias[...]
        y = y.astype(state.dtype)
        return y if self.post_norm is None else self.post_norm(y)


def _offset() -> nnx.Param:
    return nnx.Param(jnp.zeros((1,), jnp.float32), role="bias")


class TFixup(Add):
    """y = post_norm(x + branch); initial v, o and feed-forward kernels are multiplied by

        decoder    (9 n_layers)^(-1/4)
        encoder    0.67 n_layers^(-1/4)

    q and k start as the initializer has them, which in the paper is Xavier's.

    Source: Huang et al., "Improving Transformer Optimization Through Better
    Initialization" (ICML 2020), section 3.2.
    Departure: the embedding, N(0, 1 / d_model) times the same factor there, is left to
    the initializer.
    """

    traced = ()

    @staticmethod
    def check(*, side: str = "decoder") -> None:
        check_choice("side", side, ("decoder", "encoder"))

    def __init__(self, *, side: str = "decoder"):
        self.check(side=side)
        super().__init__()
        self.side = side

    def init_factor(self, use: str, site: Site):
        if not is_on_the_value_path(use, site):
            return 1.0
        n = site.n_layers
        return (9 * n) ** -0.25 if self.side == "decoder" else 0.67 * n**-0.25
