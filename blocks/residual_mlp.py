"""A stack of feed-forward sub-layers: the network in which depth laws are cleanest."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from blocks.block import Block
from blocks.checks import check_choice, check_sizes
from blocks.dtypes import check_dtype
from blocks.inits.scaled import Scaled
from blocks.layer_parts import kinds_of, parts_of
from blocks.linear import Linear
from blocks.norms.at_site import make_norm
from blocks.norms.looks import look_at_norm
from blocks.site import Site
from blocks.stack import REMAT, Stack
from blocks.taps import mean_square


class ResidualMLP(nnx.Module):
    """One feed-forward sub-layer per block, no attention, no tokens.

        out = final_norm(close(blocks(open(x))))        x: [rows, d_model]
        loss = mean(out * weights)

    Depth L counts blocks, which here are sub-layers. The loss is linear in the output,
    so no property of the data or of a head enters the gradient.

    Args: as in `blocks.transformer.Transformer`.
    """

    traced = ()

    @staticmethod
    def check(
        *,
        d_model: int,
        n_layers: int,
        d_ff: int | None,
        dtype: str = "float32",
        remat: str = "auto",
        **_,
    ) -> None:
        check_sizes(d_model=d_model, n_layers=n_layers, d_ff=d_ff)
        check_dtype(dtype)
        check_choice("remat", remat, REMAT)

    def __init__(
        self,
        d_model: int = 64,
        *,
        n_layers: int = 4,
        d_ff: int | None = 256,
        norm: Callable,
        ffn_norm: Callable | None = None,
        final_norm: Callable | None = None,
        ffn: Callable,
        residual,
        placement,
        init,
        pattern: Callable | None = None,
        dtype: str = "float32",
        remat: str = "auto",
        stack: Callable = Stack,
        rngs: nnx.Rngs,
    ):
        self.dtype = dtype
        key = rngs.params()
        # One key per component: what one of them draws never shifts another.
        at = [nnx.Rngs(params=jax.random.fold_in(key, i)) for i in range(4)]
        self.embedding_norm = (
            make_norm(norm, d_model, "embedding", rngs=at[0])
            if placement.embedding_norm
            else None
        )
        self.ends = residual.make_ends(
            d_model, n_layers=n_layers, norm=norm, rngs=at[3]
        )
        parts = dict(ffn=ffn, placement=placement, ffn_norm=ffn_norm or norm)

        def make_block(*, layer, like, rngs):
            own = parts_of(like, n_layers, pattern, parts)
            site = Site("ffn", layer, n_layers)
            linear = functools.partial(
                Linear,
                init=Scaled(init, residual, site),
                layer=layer,
                n_sublayers=n_layers,
            )
            branch = functools.partial(own["ffn"], d_model, d_ff, linear=linear)
            placed = own["placement"].at("ffn", like, n_layers)
            return Block(
                d_model,
                {"ffn": (branch, own["ffn_norm"], placed)},
                residual=residual,
                layer=layer,
                n_layers=n_layers,
                rngs=rngs,
            )

        kinds = kinds_of(n_layers, pattern, parts, ("ffn",))
        self.blocks = stack(make_block, n_layers, kinds=kinds, remat=remat, rngs=at[1])
        self.looks = ()  # what it measures beside the stream: `blocks.looking`
        self.final_norm = (
            make_norm(final_norm or norm, d_model, "final", rngs=at[2])
            if placement.final_norm
            else None
        )

    def __call__(self, x: jax.Array, stream_taps: jax.Array | None = None):
        """[rows, d_model] -> [rows, d_model], and measurements."""
        x = x.astype(self.dtype)
        if self.embedding_norm is not None:
            x = self.embedding_norm(x)
        rows = (x.shape[0], 1)  # every row is a sequence of one token
        state, measured = self.blocks(self.ends.open(x), rows, stream_taps=stream_taps)
        if stream_taps is not None:
            measured = {**measured, "input_mean_square": mean_square(x)}
        out = self.ends.close(state)
        if self.final_norm is None:
            return out, measured
        if "norms" in self.looks:
            seen = look_at_norm(self.final_norm, out)
            measured |= {f"final/{name}": value for name, value in seen.items()}
        return self.final_norm(out), measured

    def loss(self, batch: dict, stream_taps: jax.Array | None = None):
        """mean(out * weights) over all entries, in float32 or wider.

        Args:
            batch: `x` and `weights`, each [rows, d_model].
            stream_taps: zeros [n_layers, 1] to measure the stream, or None.
        """
        out, measured = self(batch["x"], stream_taps)
        wide = jnp.promote_types(out.dtype, jnp.float32)
        return jnp.mean(out.astype(wide) * batch["weights"].astype(wide)), measured
