"""What a data source loads, and how it names its streams."""

import dataclasses
from typing import Protocol

import jax
import numpy as np

SPLITS = ("train", "validation")

# What batches hold, as models say what they read.
TOKENS = "tokens"  # int32 [batch_size, seq_len + 1], each token to be predicted
ROWS = "rows of numbers"  # a dict: x and weights
IMAGES = "images"  # a dict: pixels and labels
MASKED_TEXTS = "masked texts"  # a dict: tokens, labels, segments


class Stream(Protocol):
    """Data that stay on the host: batches are made there, ahead of the device.

    `draw` and `read` together are what `batch` of the source is for data that are on the
    device: the same batch for the same key, to the bit.
    """

    dtype: np.dtype  # of what `read` returns

    def draw(self, key, *, split: str, batch_size: int, seq_len: int) -> jax.Array:
        """Which rows make a batch, [batch_size]; pure, and run under `enable_x64`."""

    def read(self, drawn: np.ndarray, *, split: str, seq_len: int) -> np.ndarray:
        """Token ids [*drawn.shape, seq_len + 1] of drawn rows.

        Raises:
            ValueError: what is read is not what it should be.
        """

    # Where a batch is more than its windows, `finish(windows, key, *, split)` makes it of
    # them on the device.


@dataclasses.dataclass(frozen=True)
class Dataset:
    """Everything that is read or computed once, on the host.

    arrays: what `batch` of the source needs; passed to compiled code as arguments.
    vocab_size: number of token ids; None where a batch holds no tokens.
    unit: what a token is (`byte`, `symbol`), or one of a batch without tokens (`row`,
        `image`).
    fingerprint: hex digest; equal exactly if the data is.
    train_tokens, validation_tokens: sizes, in units; None for a generator, which has no
        end.
    references: losses to compare with, nats per token (`unigram`, `bigram`: entropies
        of the validation text; `entropy_rate`: exact floor of a generated source).
    stream: makes the batches where the data are too large for the device; `arrays` are
        empty then.
    period: positions after which a generated source begins anew; `entropy_rate` is
        exact for windows of whole periods, and no others are run.
    holds: what a batch is, one of the constants above.
    sizes: keywords that a model must have with these values, to read it.
    """

    arrays: dict[str, np.ndarray]
    vocab_size: int | None
    unit: str
    fingerprint: str
    train_tokens: int | None
    validation_tokens: int | None
    references: dict[str, float]
    stream: Stream | None = None
    period: int | None = None
    holds: str = TOKENS
    sizes: dict[str, int] = dataclasses.field(default_factory=dict)


def split_key(key: jax.Array, split: str) -> jax.Array:
    """The key of one split, so that equal keys never give two splits one stream.

    Raises:
        ValueError: `split` is neither "train" nor "validation".
    """
    if split not in SPLITS:
        raise ValueError(f"split: expected one of {', '.join(SPLITS)}, got {split!r}")
    return jax.random.fold_in(key, SPLITS.index(split))
