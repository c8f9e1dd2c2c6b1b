"""Attention residuals: every sub-layer attends over the outputs of earlier ones."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from blocks.norms.rmsnorm import RMSNorm
from blocks.residual.add import Add
from blocks.residual.history import HistoryEnds, fixed_depth
from blocks.site import Site


class AttentionResiduals(Add):
    """Input of a sub-layer: a softmax-weighted sum of sources, for every token its own.

        h = sum_j a_j v_j,      a = softmax_j(query . key_norm(v_j))

    v_0 is the embedding. With n_groups null every later source is the output of one
    branch, and a sub-layer sees all before it. Else the sub-layers are cut into
    n_groups runs of equal length (the last may be shorter) and a source is the sum of
    the branches of a run, as far as it has got. There is no other addition. What leaves
    the last block is one more such sum.

    Parameters (float32), role in brackets:
        query          [d_model]  init 0  [mixing]   every source weighs the same
        key_norm/gain  [d_model]  init 1  [gain]     RMSNorm

    The joint of a sub-layer has those of the sum that follows it: the first sub-layer
    has the embedding alone to read and needs none.

    Weights and sum are in float32 or wider. State: h, and the sources [2 n_layers + 1 or
    n_groups + 1, tokens, d_model]. Since the scan keeps the state of every layer for the
    backward pass, memory grows as n_layers times the number of sources.

    Source: arXiv 2603.15031 section 3 (full, and block with about 8 groups).
    """

    traced = ()
    takes_post_norm = False  # there is no sum of stream and branch to normalize

    @staticmethod
    def check(*, n_groups: int | None = None, eps: float = 1e-6) -> None:
        if n_groups is not None and n_groups < 1:
            raise ValueError(f"n_groups must be at least 1 or null, got {n_groups}")
        RMSNorm.check(eps=eps)

    def __init__(self, *, n_groups: int | None = None, eps: float = 1e-6):
        """Args:
        n_groups: sums that branches are gathered in; None is one per branch.
        eps: of the norm of the keys.
        """
        self.check(n_groups=n_groups, eps=eps)
        super().__init__()
        self.n_groups = n_groups
        self.eps = eps

    def make_ends(
        self, d_model: int, *, n_layers, norm: Callable, rngs: nnx.Rngs
    ) -> HistoryEnds:
        del d_model, norm, rngs
        # Room for two sub-layers in a block; of one, half of it stays unread.
        n_branches = 2 * fixed_depth(n_layers, "AttentionResiduals")
        return HistoryEnds(1 + (self.n_groups or n_branches))

    def make_joint(
        self,
        d_model: int,
        *,
        site: Site,
        post_norm: Callable | None = None,
        rngs: nnx.Rngs,
    ) -> "AttentionResidualsJoint":
        if post_norm is not None:
            raise ValueError(
                "post_norm has no meaning with attention residuals: there is no sum of "
                "stream and branch to normalize"
            )
        if site.per_block > 2:
            raise ValueError(
                "AttentionResiduals has room for two sub-layers in a block, "
                f"got {site.per_block}"
            )
        n_sublayers = fixed_depth(site.n_layers, "AttentionResiduals") * site.per_block
        n_groups = min(self.n_groups or n_sublayers, n_sublayers)
        return AttentionResidualsJoint(
            d_model, eps=self.eps, per_group=-(-n_sublayers // n_groups), rngs=rngs
        )


class AttentionResidualsJoint(nnx.Module):
    """Adds a branch to its group, and makes the input of the next sub-layer."""

    def __init__(self, d_model: int, *, eps: float, per_group: int, rngs: nnx.Rngs):
        self.query = nnx.Param(jnp.zeros((d_model,), jnp.float32), role="mixing")
        self.key_norm = RMSNorm(d_model, eps=eps, rngs=rngs)
        self.per_group = per_group

    def map_stream(self, f, state):
        """Measured is what the next sub-layer reads; the sources are memory."""
        return f(state[0]), state[1]

    def read(self, state: tuple[jax.Array, jax.Array], i: jax.Array):
        del i
        return state[0], None

    def write(self, state, branch: jax.Array, kept, i: jax.Array):
        del kept
        _, sources = state
        newest = 1 + i // self.per_group
        sources = sources.at[newest].add(branch)
        return self.attend(sources, newest), sources

    def attend(self, sources: jax.Array, newest: jax.Array) -> jax.Array:
        """The weighted sum of sources 0 .. newest: [tokens, d_model]."""
        wide = jnp.promote_types(sources.dtype, jnp.float32)
        values = sources.astype(wide)
        logits = self.key_norm(values) @ self.query[...].astype(wide)
        is_seen = jnp.arange(len(sources)) <= newest
        weights = jax.nn.softmax(logits, axis=0, where=is_seen[:, None])
        return jnp.einsum("nt,ntd->td", weights, values).astype(sources.dtype)
