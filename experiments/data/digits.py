"""Handwritten digits of 8 x 8 pixels: images that need no download."""

import hashlib
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from experiments.data.dataset import IMAGES, SPLITS, Dataset, split_key

FILE = Path(__file__).with_name("digits.npz")  # where it is from: digits.txt
N_CLASSES, SIZE = 10, 8
HELD_OUT = 36  # images of each digit for validation: a fifth
SPLIT_SEED = 0  # numpy default_rng; of the split, which is one for all runs


class Digits:
    """1,797 grey images of the digits 0 to 9 (UCI optical recognition, its test set).

    Of each digit 36 images, drawn once for all runs, are for validation: 360, and 1,437
    for training. A training batch is drawn with replacement; the validation batch is
    the whole set, whatever `batch_size` is, so `task.eval_batches=1` sees it all. Pixels
    0 .. 16 become numbers of mean 0 and standard deviation 1 over all training pixels.

    Args:
        max_shift: each training image is moved by a number of pixels between -max_shift
            and max_shift, both ways, each as likely; what comes in is empty paper.
    """

    traced = ()

    @staticmethod
    def check(*, max_shift: int = 1) -> None:
        """Refuses a shift that may leave nothing of a digit."""
        if not 0 <= max_shift < SIZE // 2:
            raise ValueError(
                f"max_shift: expected 0 to {SIZE // 2 - 1}, got {max_shift}"
            )

    def __init__(self, *, max_shift: int = 1):
        self.max_shift = max_shift

    def load(self) -> Dataset:
        """Reads the file and splits it."""
        with np.load(FILE) as stored:
            images, labels = stored["images"], stored["labels"]
        held_out = held_out_of(labels)
        digest = hashlib.sha256(b"digits")
        arrays = {}
        for split, chosen in zip(SPLITS, (~held_out, held_out), strict=True):
            arrays[f"{split}_images"] = images[chosen]
            arrays[f"{split}_labels"] = labels[chosen].astype(np.int32)
            digest.update(images[chosen].tobytes() + labels[chosen].tobytes())
        train = arrays["train_images"]
        arrays["mean"] = np.float32(train.mean(dtype=np.float64))
        arrays["std"] = np.float32(train.std(dtype=np.float64))
        return Dataset(
            arrays=arrays,
            vocab_size=None,
            unit="image",
            fingerprint=digest.hexdigest(),
            train_tokens=int((~held_out).sum()),
            validation_tokens=int(held_out.sum()),
            references={},
            holds=IMAGES,
            sizes={"image_size": SIZE, "n_channels": 1, "n_classes": N_CLASSES},
        )

    def batch(
        self, arrays, key, *, split, batch_size, seq_len=None
    ) -> dict[str, jax.Array]:
        """{"pixels", "labels"}: float32 [batch, 1, 8, 8] and int32 [batch]."""
        del seq_len
        key = split_key(key, split)
        arrays = jax.tree.map(jnp.asarray, arrays)  # as loaded, or as passed to jit
        images, labels = arrays[f"{split}_images"], arrays[f"{split}_labels"]
        if split == "train":
            which, where = jax.random.split(key)
            drawn = jax.random.randint(which, (batch_size,), 0, len(labels), jnp.int32)
            images, labels = images[drawn], labels[drawn]
            images = shifted(images, where, self.max_shift)
        pixels = (images.astype(jnp.float32) - arrays["mean"]) / arrays["std"]
        return {"pixels": pixels[:, None], "labels": labels}


def held_out_of(labels: np.ndarray) -> np.ndarray:
    """Which images are for validation: bool [n], `HELD_OUT` of each digit."""
    rng = np.random.default_rng(SPLIT_SEED)
    held_out = np.zeros(len(labels), bool)
    for digit in range(N_CLASSES):
        held_out[rng.permutation(np.flatnonzero(labels == digit))[:HELD_OUT]] = True
    return held_out


def shifted(images: jax.Array, key: jax.Array, most: int) -> jax.Array:
    """Each of [n, height, width] moved on its own, by up to `most` pixels both ways."""
    n, *sides = images.shape
    starts = jax.random.randint(key, (n, 2), 0, 2 * most + 1, jnp.int32)
    padded = jnp.pad(images, ((0, 0), (most, most), (most, most)))
    return jax.vmap(lambda x, at: jax.lax.dynamic_slice(x, at, sides))(padded, starts)
