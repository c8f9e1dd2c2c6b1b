"""Images as sequences of patches."""

import jax
import jax.numpy as jnp
from flax import nnx


class Patches(nnx.Module):
    """y = patches(image) @ kernel + bias, patches row by row from the top left.

    A patch is the vector of its n_channels x patch_size x patch_size numbers in that
    order, so the kernel is a convolution whose stride is its size.

    Parameters (float32), role in brackets:
        kernel  [n_channels * patch_size^2, d_model]  init.kernel  [embedding]
        bias    [d_model]                             init.bias    [bias]

    Source: arXiv 2010.11929 equation 1; transformers 5.24.0 ViTPatchEmbeddings.
    """

    def __init__(
        self, d_model: int, *, patch_size: int, n_channels: int, init, rngs: nnx.Rngs
    ):
        """Args:
        d_model: width of a token.
        patch_size: pixels on a side. n_channels: numbers of a pixel.
        init: as in `blocks.linear.Linear`.
        rngs: gives the key.
        """
        self.patch_size = patch_size
        self.n_channels = n_channels
        width = n_channels * patch_size**2
        key = rngs.params()
        kernel = init.kernel(key, (width, d_model), "hidden", layer=0, n_sublayers=1)
        self.kernel = nnx.Param(kernel, role="embedding")
        offset = init.bias(jax.random.fold_in(key, 1), (d_model,), width)
        self.bias = nnx.Param(offset, role="bias")

    def __call__(self, pixels: jax.Array, dtype) -> jax.Array:
        """[batch, n_channels, height, width] -> [batch, patches, d_model].

        Raises:
            ValueError: images of other channels, or sides that are no whole patches.
        """
        size = self.patch_size
        batch, channels, height, width = pixels.shape
        if channels != self.n_channels or height % size or width % size:
            raise ValueError(
                f"expected images of {self.n_channels} channels and sides of whole "
                f"patches of {size}, got shape {pixels.shape}"
            )
        x = pixels.reshape(batch, channels, height // size, size, width // size, size)
        x = x.transpose(0, 2, 4, 1, 3, 5).reshape(batch, -1, channels * size**2)
        x = x.astype(dtype)
        return x @ self.kernel[...].astype(dtype) + self.bias[...].astype(dtype)


def n_patches(image_size: int, patch_size: int) -> int:
    """Patches of a square image."""
    return (image_size // patch_size) ** 2


def check_patches(image_size: int, patch_size: int) -> None:
    """Raises ValueError: the image is no whole number of patches."""
    if patch_size < 1 or image_size < 1 or image_size % patch_size:
        raise ValueError(
            "image_size must be a multiple of patch_size, got "
            f"image_size={image_size} and patch_size={patch_size}"
        )


def positions_of(n: int, d_model: int, *, init, rngs: nnx.Rngs) -> nnx.Param:
    """A learned vector for each of n places; [n, d_model] [position]."""
    return nnx.Param(init.embedding(rngs.params(), (n, d_model)), role="position")


def summary_token(d_model: int, *, init, rngs: nnx.Rngs) -> nnx.Param:
    """The token in front of the patches that the head reads; [d_model] [embedding]."""
    drawn = init.embedding(rngs.params(), (1, d_model))[0]
    return nnx.Param(jnp.asarray(drawn), role="embedding")
