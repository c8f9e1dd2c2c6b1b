"""Admin: Post-LN with a learned skip that a profiling pass sets."""

import jax
import jax.numpy as jnp
from flax import nnx

from blocks.checks import check_positive
from blocks.residual.add import Add
from blocks.residual.factor import Factor
from blocks.residual.learned import learned_factor
from blocks.site import Site


class Admin(Add):
    """y = post_norm(skip * x + branch), one factor per feature.

    The initial factors come from `profile`, one per sub-layer: training starts from
    them in a second run.

    Parameters (float32), role in brackets:
        skip  [d_model]  init skips[number of the sub-layer], or 1  [scale]

    Source: arXiv 2004.08249 section 4; LiyuanLucasLiu/Transformer-Clinic.
    """

    traced = ()

    @staticmethod
    def check(*, skips: tuple | None = None) -> None:
        for value in skips or ():
            check_positive(skips=value)

    def __init__(self, *, skips: tuple | None = None):
        """Args:
        skips: one number per sub-layer of the model, or None for 1 everywhere.
        """
        self.check(skips=skips)
        self.skips = skips

    def factors(self, d_model: int, site: Site) -> tuple[Factor, Factor]:
        if self.skips is None:
            return learned_factor(d_model, 1.0), 1.0
        if not isinstance(site.n_layers, int):
            raise ValueError("skips are per sub-layer: expected a depth that is fixed")
        if len(self.skips) != site.n_sublayers:
            raise ValueError(
                f"skips: expected {site.n_sublayers} numbers (one per sub-layer), "
                f"got {len(self.skips)}"
            )
        value = jnp.asarray(self.skips, jnp.float32)[site.number]
        return learned_factor(d_model, value), 1.0


def profile(blocks: nnx.Module, x: jax.Array, shape: tuple[int, int]) -> list[float]:
    """The factors with which a stack of `Admin` joints should start.

        skip_1 = 1,    skip_{l+1} = sqrt(Var(skip_l * x_l) + Var(F_l(x_l)))

    variances over all entries, x_l as it arrives with the factors found so far.

    Args:
        blocks: a `blocks.stack.Stack`, its layers all alike.
        x: what enters it, [tokens, d_model]. shape: (batch, seq).
    """
    if set(blocks.places) != {"layers"}:
        raise ValueError("profile needs layers that are all alike")
    graphdef, arrays = nnx.split(blocks.layers)
    skips, skip, memory = [], jnp.ones(()), None
    for layer in range(blocks.n_layers):
        own = jax.tree.map(lambda a, layer=layer: a[layer], arrays)
        block = nnx.merge(graphdef, own)
        memory = block.first_memory(len(x), x.dtype) if memory is None else memory
        for index, name in enumerate(block.names):
            i = layer * len(block.names) + index
            joint = getattr(block, f"{name}_joint")
            joint.skip[...] = jnp.full_like(joint.skip[...], skip)
            u, kept = joint.read(x, i)
            branch, memory[name] = getattr(block, name)(u, shape, memory[name], layer)
            skips.append(float(skip))
            skip = jnp.sqrt(jnp.var(skip * x) + jnp.var(branch))
            x = joint.write(x, branch, kept, i)
    return skips
