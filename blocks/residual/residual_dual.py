"""ResiDual: a Post-LN stream and a Pre-LN stream side by side."""

from collections.abc import Callable

import jax
from flax import nnx

from blocks.norms.at_site import make_norm
from blocks.residual.add import Add, norm_or_none
from blocks.site import Site


class ResiDual(Add):
    """Two streams with the same branches; only the first is read.

        open     x = embedding (or its norm), z = embedding
        read     F(x), without a norm of its own
        write    z = z + branch,   x = post_norm(x + branch)
        close    x + norm(z)

    Sub-modules:
        norm        the model's norm, of z at the end
        input_norm  the model's norm, of x at the start, if asked for

    Source: arXiv 2304.14802 section 3; microsoft/ResiDual (both of its multipliers 1).
    """

    traced = ()
    needs_post_norm = True  # without, both streams are the same

    @staticmethod
    def check(*, normalize_input: bool = False) -> None:
        """Every value of `normalize_input` is valid."""

    def __init__(self, *, normalize_input: bool = False):
        super().__init__()
        self.normalize_input = normalize_input

    def make_ends(
        self, d_model: int, *, n_layers, norm: Callable, rngs: nnx.Rngs
    ) -> "ResiDualEnds":
        del n_layers
        return ResiDualEnds(
            make_norm(norm, d_model, "final", rngs=rngs),
            make_norm(norm, d_model, "embedding", rngs=rngs)
            if self.normalize_input
            else None,
        )

    def make_joint(
        self,
        d_model: int,
        *,
        site: Site,
        post_norm: Callable | None = None,
        rngs: nnx.Rngs,
    ) -> "ResiDualJoint":
        return ResiDualJoint(norm_or_none(post_norm, d_model, site, rngs))


class ResiDualEnds(nnx.Module):
    def __init__(self, norm: nnx.Module, input_norm: nnx.Module | None):
        self.norm = norm
        self.input_norm = input_norm

    def open(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        return (x if self.input_norm is None else self.input_norm(x)), x

    def close(self, state: tuple[jax.Array, jax.Array]) -> jax.Array:
        x, z = state
        return x + self.norm(z)


class ResiDualJoint(nnx.Module):
    def __init__(self, post_norm: nnx.Module | None):
        self.post_norm = post_norm

    def map_stream(self, f, state):
        """Measured is the sum of all branches, z; x is normalized."""
        return state[0], f(state[1])

    def read(self, state: tuple[jax.Array, jax.Array], i: jax.Array):
        del i
        return state[0], None

    def write(self, state, branch: jax.Array, kept, i: jax.Array):
        del kept, i
        x, z = state
        y = x + branch
        return (y if self.post_norm is None else self.post_norm(y)), z + branch
