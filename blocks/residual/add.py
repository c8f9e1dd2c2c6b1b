"""The plain residual connection: one stream, to which every branch is added."""

import math
from collections.abc import Callable

import jax
from flax import nnx


class Add:
    """y = post_norm(skip * x + branch_scale * branch).

    With skip = branch_scale = 1 and no post_norm this is the stream of Pre-LN, Peri-LN
    and OLMo 2; with a post_norm it is Post-LN (arXiv 1706.03762), with skip = alpha too
    DeepNorm's sum (arXiv 2203.00555). No state but the stream itself.

    A residual scheme offers three things: `make_ends` (open: embedding -> state, and
    close: state -> stream), `make_joint` once per sub-layer (read: state -> input of the
    branch; write: state and branch -> state), and `check`.
    """

    traced = ()

    @staticmethod
    def check(*, skip: float = 1.0, branch_scale: float = 1.0) -> None:
        for name, value in (("skip", skip), ("branch_scale", branch_scale)):
            if not math.isfinite(value):
                raise ValueError(f"{name} must be finite, got {value}")

    def __init__(self, *, skip: float = 1.0, branch_scale: float = 1.0):
        self.skip = skip
        self.branch_scale = branch_scale

    def make_ends(self, d_model: int, *, rngs: nnx.Rngs) -> "AddEnds":
        del d_model, rngs
        return AddEnds()

    def make_joint(
        self, d_model: int, *, post_norm: Callable | None = None, rngs: nnx.Rngs
    ) -> "AddJoint":
        return AddJoint(
            d_model,
            skip=self.skip,
            branch_scale=self.branch_scale,
            post_norm=post_norm,
            rngs=rngs,
        )


class AddEnds(nnx.Module):
    """The stream is the state: nothing to open, nothing to close."""

    def open(self, x: jax.Array) -> jax.Array:
        return x

    def close(self, state: jax.Array) -> jax.Array:
        return state


class AddJoint(nnx.Module):
    """Where one branch leaves the stream and comes back to it."""

    def __init__(self, d_model: int, *, skip, branch_scale, post_norm, rngs: nnx.Rngs):
        self.skip = skip
        self.branch_scale = branch_scale
        self.post_norm = None if post_norm is None else post_norm(d_model, rngs=rngs)

    def read(self, state: jax.Array, i: jax.Array) -> jax.Array:
        """Input of sub-layer `i` (counted through the whole model): [tokens, d_model]."""
        del i
        return state

    def write(self, state: jax.Array, u: jax.Array, branch: jax.Array, i: jax.Array):
        """The stream after sub-layer `i`. `u` is what `read` gave."""
        del u, i
        # Factors of one are left out, not multiplied: the same bits either way, but
        # a shorter program for the common case.
        x = state if self.skip == 1.0 else self.skip * state
        b = branch if self.branch_scale == 1.0 else self.branch_scale * branch
        y = x + b
        return y if self.post_norm is None else self.post_norm(y)
