"""A transformer that classifies images from the parts it is given."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from blocks.attention_stack import attention_stack
from blocks.language_model import check_dtype, cross_entropy
from blocks.linear import Linear
from blocks.norms.at_site import make_norm
from blocks.patches import (
    Patches,
    check_patches,
    n_patches,
    positions_of,
    summary_token,
)
from blocks.stack import REMAT, Stack
from blocks.taps import mean_square

POOLS = ("token", "mean")


class VisionModel(nnx.Module):
    """Patches of an image, a stack of attention and feed-forward blocks, a classifier.

        x = [summary token, patches(image)] + positions
        x = close(blocks(open(x)))
        logits = head(pool(final_norm(x)))

    pool is the summary token in front (ViT), or without such a token the mean of all
    patches. Every token should see every other: attention with causal=false.

    Args:
        d_model, n_layers, n_heads, n_kv_heads, d_head, d_ff, norm, attn_norm, ffn_norm,
            final_norm, attention, ffn, residual, placement, init, pattern, dtype, remat,
            stack: as in `blocks.language_model.LanguageModel`.
        image_size: pixels on a side. patch_size: likewise, of a patch.
        n_channels: numbers of a pixel. n_classes: of the head.
        pool: "token" or "mean".

    Source: arXiv 2010.11929 section 3.1; with placement=parallel and norms of queries
    and keys arXiv 2302.05442 section 2.1, whose pooling is another one.
    """

    traced = ()
    reads = "images"  # of which the data of a run have none

    @staticmethod
    def check(
        *,
        d_model: int,
        n_layers: int,
        n_heads: int,
        d_ff: int | None,
        n_kv_heads: int | None = None,
        d_head: int | None = None,
        image_size: int = 224,
        patch_size: int = 16,
        n_channels: int = 3,
        n_classes: int = 1000,
        pool: str = "token",
        dtype: str = "float32",
        remat: str = "auto",
        **_,
    ) -> None:
        sizes = dict(
            d_model=d_model,
            n_layers=n_layers,
            n_heads=n_heads,
            d_ff=d_ff,
            n_kv_heads=n_kv_heads,
            d_head=d_head,
            n_channels=n_channels,
            n_classes=n_classes,
        )
        for name, size in sizes.items():
            if size is not None and size < 1:
                raise ValueError(f"{name} must be at least 1, got {size}")
        check_dtype(dtype)
        check_patches(image_size, patch_size)
        for name, value, known in (
            ("pool", pool, POOLS),
            ("remat", remat, REMAT),
        ):
            if value not in known:
                raise ValueError(
                    f"{name} must be one of {', '.join(known)}, got {value!r}"
                )

    def __init__(
        self,
        d_model: int = 64,
        *,
        n_layers: int = 4,
        n_heads: int = 4,
        n_kv_heads: int | None = None,
        d_head: int | None = None,
        d_ff: int | None = 256,
        image_size: int = 224,
        patch_size: int = 16,
        n_channels: int = 3,
        n_classes: int = 1000,
        pool: str = "token",
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
        rngs: nnx.Rngs,
    ):
        self.dtype = dtype
        self.looks = ()  # what it measures beside the stream: `blocks.looking`
        key = rngs.params()
        # One key per component: what one of them draws never shifts another.
        at = [nnx.Rngs(params=jax.random.fold_in(key, i)) for i in range(8)]
        self.patches = Patches(
            d_model, patch_size=patch_size, n_channels=n_channels, init=init, rngs=at[0]
        )
        self.summary = (
            summary_token(d_model, init=init, rngs=at[1]) if pool == "token" else None
        )
        n_tokens = n_patches(image_size, patch_size) + (pool == "token")
        self.positions = positions_of(n_tokens, d_model, init=init, rngs=at[2])
        self.embedding_norm = (
            make_norm(norm, d_model, "embedding", rngs=at[3])
            if placement.embedding_norm
            else None
        )
        self.ends = residual.make_ends(
            d_model, n_layers=n_layers, norm=norm, rngs=at[4]
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
            rngs=at[5],
        )
        self.final_norm = (
            make_norm(final_norm or norm, d_model, "final", rngs=at[6])
            if placement.final_norm
            else None
        )
        self.head = Linear(
            d_model,
            n_classes,
            use="head",
            init=init,
            n_sublayers=2 * n_layers,
            bias=True,
            rngs=at[7],
        )

    def embed(self, pixels: jax.Array) -> tuple[jax.Array, tuple[int, int]]:
        """[batch, n_channels, height, width] -> [batch * seq, d_model], (batch, seq)."""
        x = self.patches(pixels, self.dtype)
        if self.summary is not None:
            first = self.summary[...].astype(x.dtype)
            first = jnp.broadcast_to(first, (len(x), 1, x.shape[-1]))
            x = jnp.concatenate([first, x], axis=1)
        if x.shape[1:] != self.positions.shape:
            raise ValueError(
                f"expected images of {len(self.positions)} tokens, got {x.shape[1]}"
            )
        x = x + self.positions[...].astype(x.dtype)
        shape = x.shape[:2]
        x = x.reshape(-1, x.shape[-1])
        return (x if self.embedding_norm is None else self.embedding_norm(x)), shape

    def hidden(self, pixels: jax.Array, stream_taps: jax.Array | None = None):
        """The stream after the last block, (batch, seq), and measurements."""
        x, shape = self.embed(pixels)
        state, measured = self.blocks(self.ends.open(x), shape, stream_taps=stream_taps)
        if stream_taps is not None:
            measured = {**measured, "input_mean_square": mean_square(x)}
        return self.ends.close(state), shape, measured

    def logits(self, hidden: jax.Array, shape: tuple[int, int]) -> jax.Array:
        """[batch * seq, d_model] -> [batch, n_classes]."""
        x = hidden if self.final_norm is None else self.final_norm(hidden)
        x = x.reshape(*shape, -1)
        return self.head(x.mean(1) if self.summary is None else x[:, 0])

    def __call__(self, pixels: jax.Array) -> jax.Array:
        """[batch, n_channels, height, width] -> logits [batch, n_classes]."""
        hidden, shape, _ = self.hidden(pixels)
        return self.logits(hidden, shape)

    def loss(self, batch: dict, stream_taps: jax.Array | None = None):
        """Mean cross-entropy in nats per image, and measurements.

        Args:
            batch: `pixels` [batch, n_channels, height, width], `labels` [batch].
            stream_taps: zeros [n_layers, 2] to measure the stream, or None.

        Raises:
            ValueError: the batch is of another kind.
        """
        if not isinstance(batch, dict) or not {"pixels", "labels"} <= set(batch):
            raise ValueError("a vision model needs images: pixels and labels")
        hidden, shape, measured = self.hidden(batch["pixels"], stream_taps)
        return cross_entropy(self.logits(hidden, shape), batch["labels"]), measured
