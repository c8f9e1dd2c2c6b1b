"""What a data source loads, and how it names its streams."""

import dataclasses

import jax
import numpy as np

SPLITS = ("train", "validation")


@dataclasses.dataclass(frozen=True)
class Dataset:
    """Everything that is read or computed once, on the host.

    arrays: what `batch` of the source needs; passed to compiled code as arguments.
    vocab_size: number of token ids; None where a batch holds no tokens.
    unit: what a token is (`byte`, `symbol`), or a row of a batch without tokens.
    fingerprint: hex digest; equal exactly if the data is.
    train_tokens, validation_tokens: sizes; None for a generator, which has no end.
    references: losses to compare with, nats per token (`unigram`, `bigram`: entropies
        of the validation text; `entropy_rate`: exact floor of a generated source).
    """

    arrays: dict[str, np.ndarray]
    vocab_size: int | None
    unit: str
    fingerprint: str
    train_tokens: int | None
    validation_tokens: int | None
    references: dict[str, float]


def split_key(key: jax.Array, split: str) -> jax.Array:
    """The key of one split, so that equal keys never give two splits one stream.

    Raises:
        ValueError: `split` is neither "train" nor "validation".
    """
    if split not in SPLITS:
        raise ValueError(f"split: expected one of {', '.join(SPLITS)}, got {split!r}")
    return jax.random.fold_in(key, SPLITS.index(split))
