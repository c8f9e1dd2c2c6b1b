"""LayerNorm-Scaling: what a branch reads shrinks with the number of its block."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from blocks.checks import check_finite
from blocks.residual.add import Add, norm_or_none
from blocks.site import Site


class LayerNormScaling(Add):
    """y = x + F(norm(x) * b^(-power)), b the number of the block, from 1.

    The factor stands behind the norm and its gain, so the norm is the joint's: the one
    that a placement gives it (`post_norm`), met where the branch reads. The placement
    has no in_norm; the final norm is the model's own, and is not scaled.

    The factor is applied in float32 or wider.

    Source: arXiv 2502.05795 section 4 (power 1/2, both sub-layers of a block alike);
    lmsdss/LayerNorm-Scaling. The authors advise against an initial 1 / sqrt(2 n_layers)
    on output kernels beside it.
    """

    traced = ()
    takes_in_norm = False  # it would take the factor away again

    @staticmethod
    def check(*, power: float = 0.5) -> None:
        check_finite(power=power)

    def __init__(self, *, power: float = 0.5):
        super().__init__()
        self.power = power

    def make_joint(
        self,
        d_model: int,
        *,
        site: Site,
        post_norm: Callable | None = None,
        rngs: nnx.Rngs,
    ) -> "LayerNormScalingJoint":
        norm = norm_or_none(post_norm, d_model, site, rngs)
        return LayerNormScalingJoint(norm, self.power, site.per_block)


class LayerNormScalingJoint(nnx.Module):
    """The norm is named as in the other schemes, although it stands at the input."""

    def __init__(self, post_norm: nnx.Module | None, power: float, per_block: int):
        self.post_norm = post_norm
        self.power = power
        self.per_block = per_block

    def read(self, state: jax.Array, i: jax.Array):
        u = state if self.post_norm is None else self.post_norm(state)
        wide = jnp.promote_types(u.dtype, jnp.float32)
        block = jnp.asarray(i // self.per_block + 1, wide)
        return (u.astype(wide) * block**-self.power).astype(u.dtype), None

    def write(self, state: jax.Array, branch: jax.Array, kept, i: jax.Array):
        del kept, i
        return state + branch
