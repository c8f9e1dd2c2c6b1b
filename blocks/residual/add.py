"""The plain residual connection: one stream, to which every branch is added."""

from collections.abc import Callable

import jax
from flax import nnx

from blocks.checks import check_finite
from blocks.norms.at_site import make_norm
from blocks.residual.factor import Factor, weighted_sum
from blocks.site import Site


class Add:
    """y = post_norm(skip * x + branch_scale * branch).

    With skip = branch_scale = 1 and no post_norm this is the stream of Pre-LN, Peri-LN
    and OLMo 2; with a post_norm it is Post-LN (arXiv 1706.03762). No state but the
    stream itself.

    A residual scheme offers four things: `make_ends` (open: embedding -> state, and
    close: state -> stream), `make_joint` once per sub-layer (read: state -> input of the
    branch; write: state and branch -> state), `init_factor` (what it asks of the initial
    values of linear maps) and `check`. A scheme that differs from this one in its
    factors only is a subclass with its own `factors`.
    """

    traced = ()

    @staticmethod
    def check(*, skip: float = 1.0, branch_scale: float = 1.0) -> None:
        check_finite(skip=skip, branch_scale=branch_scale)

    def __init__(self, *, skip: float = 1.0, branch_scale: float = 1.0):
        self.skip = skip
        self.branch_scale = branch_scale

    def factors(self, d_model: int, site: Site) -> tuple[Factor, Factor]:
        """skip and branch_scale of one joint, as `blocks.residual.factor` has them."""
        del d_model, site
        return self.skip, self.branch_scale

    def init_factor(self, use: str, site: Site) -> float:
        """What the initial kernel of a linear map is multiplied by."""
        del use, site
        return 1.0

    def make_ends(
        self, d_model: int, *, n_layers, norm: Callable, rngs: nnx.Rngs
    ) -> "AddEnds":
        """Args:
        d_model: width of the stream.
        n_layers: depth, for schemes that keep something per layer.
        norm: the model's norm, for schemes whose ends normalize.
        """
        del d_model, n_layers, norm, rngs
        return AddEnds()

    def make_joint(
        self,
        d_model: int,
        *,
        site: Site,
        post_norm: Callable | None = None,
        rngs: nnx.Rngs,
    ) -> "AddJoint":
        """Args:
        d_model: width of the stream.
        site: which sub-layer this is.
        post_norm: factory of the norm after the sum, or None.
        """
        skip, branch_scale = self.factors(d_model, site)
        norm = norm_or_none(post_norm, d_model, site, rngs)
        return AddJoint(norm, skip=skip, branch_scale=branch_scale)


def norm_or_none(
    norm: Callable | None, d_model: int, site: Site, rngs: nnx.Rngs
) -> nnx.Module | None:
    """The norm of a joint, where the placement has one."""
    return None if norm is None else make_norm(norm, d_model, site.name, rngs=rngs)


class AddEnds(nnx.Module):
    """The stream is the state: nothing to open, nothing to close."""

    def open(self, x: jax.Array) -> jax.Array:
        return x

    def close(self, state: jax.Array) -> jax.Array:
        return state


class AddJoint(nnx.Module):
    """Where one branch leaves the stream and comes back to it.

    `read` hands two things on: the input of the branch, and whatever this joint's
    `write` wants to find again (coefficients computed from the state, say). A joint may
    also have `look(kept) -> {name: array}`: what a probe shows of it.
    """

    def __init__(
        self, post_norm: nnx.Module | None, *, skip: Factor, branch_scale: Factor
    ):
        self.post_norm = post_norm
        self.skip = skip
        self.branch_scale = branch_scale

    def read(self, state: jax.Array, i: jax.Array):
        """Input of sub-layer `i` (counted through the whole model): [tokens, d_model]."""
        del i
        return state, None

    def write(self, state: jax.Array, branch: jax.Array, kept, i: jax.Array):
        """The stream after sub-layer `i`."""
        del kept, i
        y = weighted_sum(self.skip, state, self.branch_scale, branch)
        return y if self.post_norm is None else self.post_norm(y)
