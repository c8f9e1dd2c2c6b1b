"""A transformer that classifies images from the parts it is given."""

import jax
import jax.numpy as jnp
from flax import nnx

from blocks.checks import check_choice, check_sizes
from blocks.keywords import with_keywords_of
from blocks.language_model import cross_entropy
from blocks.linear import Linear
from blocks.patches import (
    Patches,
    check_patches,
    n_patches,
    positions_of,
    summary_token,
)
from blocks.transformer import Transformer, component

POOLS = ("token", "mean")


class VisionModel(Transformer):
    """Patches of an image, a stack of attention and feed-forward blocks, a classifier.

        x = [summary token, patches(image)] + positions
        x = close(blocks(open(x)))
        logits = head(pool(final_norm(x)))

    pool is the summary token in front (ViT), or without such a token the mean of all
    patches. Every token should see every other: attention with causal=false.

    Args:
        d_model and what is not listed here: as in `blocks.transformer.Transformer`.
        image_size: pixels on a side. patch_size: likewise, of a patch.
        n_channels: numbers of a pixel. n_classes: of the head.
        pool: "token" or "mean".

    Source: arXiv 2010.11929 section 3.1; with placement=parallel and norms of queries
    and keys arXiv 2302.05442 section 2.1, whose pooling is another one.
    """

    traced = ()
    reads = "images"

    @staticmethod
    @with_keywords_of(Transformer.check)
    def check(
        *,
        image_size: int = 224,
        patch_size: int = 16,
        n_channels: int = 3,
        n_classes: int = 1000,
        pool: str = "token",
        **trunk,
    ) -> None:
        check_sizes(n_channels=n_channels, n_classes=n_classes)
        Transformer.check(**trunk)
        check_patches(image_size, patch_size)
        check_choice("pool", pool, POOLS)

    @with_keywords_of(Transformer.__init__)
    def __init__(
        self,
        d_model: int = 64,
        *,
        n_layers: int = 4,
        init,
        image_size: int = 224,
        patch_size: int = 16,
        n_channels: int = 3,
        n_classes: int = 1000,
        pool: str = "token",
        rngs: nnx.Rngs,
        **trunk,
    ):
        key = rngs.params()
        super().__init__(key, d_model, n_layers=n_layers, init=init, **trunk)
        self.patches = Patches(
            d_model,
            patch_size=patch_size,
            n_channels=n_channels,
            init=init,
            rngs=component(key, 0),
        )
        self.summary = (
            summary_token(d_model, init=init, rngs=component(key, 6))
            if pool == "token"
            else None
        )
        n_tokens = n_patches(image_size, patch_size) + (pool == "token")
        self.positions = positions_of(
            n_tokens, d_model, init=init, rngs=component(key, 7)
        )
        self.head = Linear(
            d_model,
            n_classes,
            use="head",
            init=init,
            n_sublayers=2 * n_layers,
            bias=True,
            rngs=component(key, 3),
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
        return self.entering(x.reshape(-1, x.shape[-1])), shape

    def hidden(self, pixels: jax.Array, stream_taps: jax.Array | None = None):
        """The stream after the last block, (batch, seq), and measurements."""
        x, shape = self.embed(pixels)
        hidden, measured = self.through_blocks(x, shape, stream_taps)
        return hidden, shape, measured

    def logits(self, hidden: jax.Array, shape: tuple[int, int]) -> jax.Array:
        """[batch * seq, d_model] -> [batch, n_classes]."""
        x = self.leaving(hidden).reshape(*shape, -1)
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
        check_images(batch)
        hidden, shape, measured = self.hidden(batch["pixels"], stream_taps)
        return cross_entropy(self.logits(hidden, shape), batch["labels"]), measured

    def evaluate(self, batch: dict) -> dict[str, jax.Array]:
        """`loss`, and `accuracy`: the share of images whose label has the largest logit.

        Raises:
            ValueError: the batch is of another kind.
        """
        check_images(batch)
        logits, labels = self(batch["pixels"]), batch["labels"]
        is_right = jnp.argmax(logits, axis=-1) == labels
        return {"loss": cross_entropy(logits, labels), "accuracy": jnp.mean(is_right)}


def check_images(batch) -> None:
    """Raises ValueError: the batch is of another kind."""
    if not isinstance(batch, dict) or not {"pixels", "labels"} <= set(batch):
        raise ValueError("a vision model needs images: pixels and labels")
