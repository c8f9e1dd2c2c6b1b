"""What every model of attention and feed-forward blocks has between its two ends."""

from collections.abc import Callable

import jax
from flax import nnx

from blocks.attention_stack import attention_stack
from blocks.checks import check_choice, check_sizes
from blocks.dtypes import check_dtype
from blocks.norms.at_site import make_norm
from blocks.stack import REMAT, Stack
from blocks.taps import mean_square


class Transformer(nnx.Module):
    """A stack of blocks, and the norms in front of it and behind it.

        x      = embedding_norm(what a model embeds)
        hidden = close(blocks(open(x)))
        out    = final_norm(hidden)

    Each norm exists where `placement` says. Activations are flat, [batch * seq, d_model],
    in `dtype`. A model is a subclass that adds an embedding, a head and a loss.

    Args:
        d_model, n_layers, n_heads, n_kv_heads, d_head, d_ff: sizes; n_kv_heads defaults
            to n_heads, d_head to d_model / n_heads, d_ff to the width rule of `ffn`.
        norm: factory `norm(width, rngs=rngs)` of every norm; `attn_norm`, `ffn_norm`,
            `final_norm` replace it at their site (the embedding norm uses `norm`).
        attention, ffn: factories of the branches.
        pattern: layers with other parts (`blocks.pattern`), or None.
        residual: the residual scheme. placement: where norms sit. init: initial values.
        dtype: of the activations. remat: see `blocks.stack`.
        stack: how the blocks are held and run.
    """

    @staticmethod
    def check(
        *,
        d_model: int,
        n_layers: int,
        n_heads: int,
        d_ff: int | None,
        n_kv_heads: int | None = None,
        d_head: int | None = None,
        dtype: str = "float32",
        remat: str = "auto",
        **_,
    ) -> None:
        check_sizes(
            d_model=d_model,
            n_layers=n_layers,
            n_heads=n_heads,
            n_kv_heads=n_kv_heads,
            d_head=d_head,
            d_ff=d_ff,
        )
        if d_head is None and d_model % n_heads:
            raise ValueError(
                f"d_model={d_model} is not divisible by n_heads={n_heads} "
                "(choose another width, or set d_head)"
            )
        if n_kv_heads is not None and n_heads % n_kv_heads:
            raise ValueError(
                f"n_heads={n_heads} is not divisible by n_kv_heads={n_kv_heads}"
            )
        check_dtype(dtype)
        check_choice("remat", remat, REMAT)

    def __init__(
        self,
        key: jax.Array,
        d_model: int,
        *,
        n_layers: int = 4,
        n_heads: int = 4,
        n_kv_heads: int | None = None,
        d_head: int | None = None,
        d_ff: int | None = 256,
        norm: Callable,
        attn_norm: Callable | None = None,
        ffn_norm: Callable | None = None,
        final_norm: Callable | None = None,
        attention: Callable,
        ffn: Callable,
        residual,
        placement,
        init,
        pattern: Callable | None = None,
        dtype: str = "float32",
        remat: str = "auto",
        stack: Callable = Stack,
    ):
        self.dtype = dtype
        self.looks = ()  # what it measures beside the stream: `blocks.looking`
        self.embedding_norm = (
            make_norm(norm, d_model, "embedding", rngs=component(key, 1))
            if placement.embedding_norm
            else None
        )
        self.ends = residual.make_ends(
            d_model, n_layers=n_layers, norm=norm, rngs=component(key, 4)
        )
        self.blocks = attention_stack(
            d_model,
            n_heads,
            d_ff,
            n_layers=n_layers,
            norm=norm,
            attn_norm=attn_norm,
            ffn_norm=ffn_norm,
            attention=attention,
            ffn=ffn,
            residual=residual,
            placement=placement,
            init=init,
            pattern=pattern,
            remat=remat,
            sizes={"n_kv_heads": n_kv_heads, "d_head": d_head},
            stack=stack,
            rngs=component(key, 2),
        )
        self.final_norm = (
            make_norm(final_norm or norm, d_model, "final", rngs=component(key, 5))
            if placement.final_norm
            else None
        )

    def entering(self, x: jax.Array) -> jax.Array:
        """What is embedded [tokens, d_model], as the first block gets it."""
        return x if self.embedding_norm is None else self.embedding_norm(x)

    def through_blocks(
        self,
        x: jax.Array,
        shape: tuple[int, int],
        stream_taps: jax.Array | None = None,
    ):
        """The stream after the last block [tokens, d_model], and measurements.

        Args:
            x: as `entering` gives it. shape: (batch, seq).
            stream_taps: zeros [n_layers, sub-layers] to measure the stream, or None.
        """
        state, measured = self.blocks(self.ends.open(x), shape, stream_taps=stream_taps)
        if stream_taps is not None:
            measured = {**measured, "input_mean_square": mean_square(x)}
        return self.ends.close(state), measured

    def leaving(self, hidden: jax.Array) -> jax.Array:
        """The stream after the last block, as a head gets it."""
        return hidden if self.final_norm is None else self.final_norm(hidden)


def component(key: jax.Array, number: int) -> nnx.Rngs:
    """Random numbers of one component of a model.

    A number each, so that what one of them draws never shifts another. 1, 2, 4 and 5
    are the base's.
    """
    return nnx.Rngs(params=jax.random.fold_in(key, number))
