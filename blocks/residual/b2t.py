"""B2T: the input of a block passes all its norms but the last."""

from collections.abc import Callable

import jax
from flax import nnx

from blocks.residual.add import Add, norm_or_none
from blocks.residual.carried import Beside, Carried, CarriedEnds
from blocks.site import Site


class B2T(Add):
    """Post-LN with a connection from the bottom to the top of every block.

        m = post_norm(x + attn(x))
        y = post_norm(x + m + ffn(m))

    The same for more sub-layers: the last adds x once more. A block of one sub-layer
    has no norm to pass, and is plain Post-LN.

    Source: arXiv 2206.00330 equations 10 and 11; takase/b2t_connection.
    """

    traced = ()
    needs_post_norm = True  # without, the stream doubles in every block

    @staticmethod
    def check() -> None:
        """There is nothing to set."""

    def __init__(self):
        super().__init__()

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
    ) -> "B2TJoint":
        return B2TJoint(
            norm_or_none(post_norm, d_model, site, rngs),
            is_first=site.index == 0,
            is_last=site.index == site.per_block - 1,
        )


class B2TJoint(nnx.Module):
    """Keeps the input of the block beside the stream until the last sub-layer."""

    def __init__(self, post_norm: nnx.Module | None, *, is_first: bool, is_last: bool):
        self.post_norm = post_norm
        self.is_first = is_first
        self.is_last = is_last

    def read(self, state: Carried, i: jax.Array):
        """[tokens, d_model]; the input of the block is kept."""
        del i
        return state.x, state.x if self.is_first else state.beside.value

    def write(self, state: Carried, branch: jax.Array, kept, i: jax.Array) -> Carried:
        del i
        y = state.x + branch
        if self.is_last and not self.is_first:
            y = y + kept
        if self.post_norm is not None:
            y = self.post_norm(y)
        return Carried(y, Beside(None if self.is_last else kept))
