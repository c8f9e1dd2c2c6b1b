"""ReZero: one learned factor per block, zero at first, and no norms."""

from collections.abc import Callable

import jax
from flax import nnx

from blocks.checks import check_finite
from blocks.residual.add import Add, norm_or_none
from blocks.residual.carried import Beside, Carried, CarriedEnds
from blocks.residual.factor import weighted_sum
from blocks.residual.learned import learned_factor
from blocks.site import Site


class ReZero(Add):
    """y = post_norm(x + branch_scale * branch), one factor for all branches of a block.

    At scale_init = 0 a block without norms is the identity, and the gradient of every
    weight inside a branch is exactly zero: in the first step the factors alone move.

    Parameters (float32), role in brackets:
        branch_scale  [1]  init `scale_init`  [scale]   at the first sub-layer of a block

    Source: arXiv 2003.04887 section 3; majumderb/rezero:rezero/transformer/rztx.py (one
    `resweight` for attention and feed-forward).
    """

    traced = ("scale_init",)

    @staticmethod
    def check(*, scale_init: float = 0.0) -> None:
        check_finite(scale_init=scale_init)

    def __init__(self, *, scale_init: float = 0.0):
        self.scale_init = scale_init

    def make_ends(
        self, d_model: int, *, n_layers, norm: Callable, rngs: nnx.Rngs
    ) -> CarriedEnds:
        del d_model, n_layers, norm, rngs
        return CarriedEnds()

    def make_joint(
        self,
        d_model: int,
        *,
        site: Site,
        post_norm: Callable | None = None,
        rngs: nnx.Rngs,
    ) -> "ReZeroJoint":
        return ReZeroJoint(
            norm_or_none(post_norm, d_model, site, rngs),
            learned_factor(1, self.scale_init) if site.index == 0 else None,
            is_last=site.index == site.per_block - 1,
        )


class ReZeroJoint(nnx.Module):
    """The first sub-layer of a block has the factor and hands it on."""

    def __init__(
        self, post_norm: nnx.Module | None, branch_scale: nnx.Param | None, *, is_last
    ):
        self.post_norm = post_norm
        self.branch_scale = branch_scale
        self.is_last = is_last

    def read(self, state: Carried, i: jax.Array):
        """[tokens, d_model]; the factor of the block is kept."""
        del i
        own = self.branch_scale
        return state.x, state.beside.value if own is None else own[...]

    def write(self, state: Carried, branch: jax.Array, kept, i: jax.Array) -> Carried:
        del i
        y = weighted_sum(1.0, state.x, kept, branch)
        if self.post_norm is not None:
            y = self.post_norm(y)
        return Carried(y, Beside(None if self.is_last else kept))
