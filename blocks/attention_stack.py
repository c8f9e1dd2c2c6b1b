"""The blocks of attention and feed-forward that a model is a stack of."""

import functools
from collections.abc import Callable

from flax import nnx

from blocks.block import Block
from blocks.inits.scaled import Scaled
from blocks.layer_parts import kinds_of, parts_of
from blocks.linear import Linear
from blocks.parallel import ParallelBranch
from blocks.site import Site
from blocks.stack import Stack


def attention_stack(
    d_model: int,
    n_heads: int,
    d_ff: int | None,
    *,
    n_layers: int,
    norm: Callable,
    attn_norm: Callable | None,
    ffn_norm: Callable | None,
    attention: Callable,
    ffn: Callable,
    residual,
    placement,
    init,
    pattern: Callable | None,
    remat: str,
    sizes: dict[str, int | None],
    stack: Callable = Stack,
    rngs: nnx.Rngs,
) -> nnx.Module:
    """`n_layers` blocks; arguments as in `blocks.transformer.Transformer`.

    Args:
        sizes: n_kv_heads and d_head; None is left to the attention.

    Returns:
        What `stack` makes of them: a `blocks.stack.Stack`.
    """
    parts = dict(
        attention=attention,
        ffn=ffn,
        placement=placement,
        attn_norm=attn_norm or norm,
        ffn_norm=ffn_norm or norm,
    )
    names = ("both",) if placement.parallel else ("attn", "ffn")
    sizes = {k: v for k, v in sizes.items() if v is not None}

    def make_block(*, layer, like, rngs):
        own = parts_of(like, n_layers, pattern, parts)

        def branch(name, index):
            linear = functools.partial(
                Linear,
                init=Scaled(init, residual, Site(name, layer, n_layers, index, 2)),
                layer=layer,
                n_sublayers=2 * n_layers,
            )
            if name == "attn":
                return functools.partial(
                    own["attention"], d_model, n_heads, linear=linear, **sizes
                )
            return functools.partial(own["ffn"], d_model, d_ff, linear=linear)

        def sublayer(name, make_branch, norm):
            return make_branch, norm, own["placement"].at(name, like, n_layers)

        branches = {"attn": branch("attn", 0), "ffn": branch("ffn", 1)}
        if placement.parallel:
            both = functools.partial(ParallelBranch, branches)
            sublayers = {"both": sublayer("both", both, own["attn_norm"])}
        else:
            sublayers = {
                name: sublayer(name, make, own[f"{name}_norm"])
                for name, make in branches.items()
            }
        return Block(
            d_model,
            sublayers,
            residual=residual,
            layer=layer,
            n_layers=n_layers,
            rngs=rngs,
        )

    kinds = kinds_of(n_layers, pattern, parts, names)
    return stack(make_block, n_layers, kinds=kinds, remat=remat, rngs=rngs)
