"""Byte texts: windows at random offsets, and the entropies to compare a loss with."""

import jax
import jax.numpy as jnp
import numpy as np

from experiments.data.dataset import Dataset, split_key

N_BYTES = 256
# Offsets are int32 on the device.
MAX_BYTES = MAX_TOKENS = 2**31 - 1


def text_dataset(train: bytes, validation: bytes, fingerprint: str) -> Dataset:
    """A `Dataset` of two texts, token = byte.

    Raises:
        ValueError: a text too short to have a next byte, or too long to address.
    """
    for split, text in (("train", train), ("validation", validation)):
        if not 2 <= len(text) <= MAX_BYTES:
            raise ValueError(
                f"data: expected 2 to {MAX_BYTES} bytes of {split} text, "
                f"got {len(text)}"
            )
    arrays = {
        "train": np.frombuffer(train, np.uint8),
        "validation": np.frombuffer(validation, np.uint8),
    }
    return Dataset(
        arrays=arrays,
        vocab_size=N_BYTES,
        unit="byte",
        fingerprint=fingerprint,
        train_tokens=len(train),
        validation_tokens=len(validation),
        references={
            "unigram": unigram_entropy(arrays["validation"]),
            "bigram": bigram_entropy(arrays["validation"]),
        },
    )


def window_batch(
    arrays: dict, key: jax.Array, *, split: str, batch_size: int, seq_len: int
) -> jax.Array:
    """Windows of one split at independent, uniform offsets.

    Returns:
        int32 [batch_size, seq_len + 1]: inputs [:, :-1], targets [:, 1:].

    Raises:
        ValueError: a window longer than the text, or an unknown split.
    """
    key = split_key(key, split)
    text, width = arrays[split], seq_len + 1
    starts = window_starts(
        key, text.shape[0], split=split, batch_size=batch_size, seq_len=seq_len
    )
    windows = jax.vmap(lambda i: jax.lax.dynamic_slice(text, (i,), (width,)))(starts)
    return windows.astype(jnp.int32)


def window_starts(
    key: jax.Array, n_tokens: int, *, split: str, batch_size: int, seq_len: int
) -> jax.Array:
    """Independent, uniform offsets of windows in a text of `n_tokens`.

    Args:
        key: of the split (`split_key`).
        split: its name, for the message.

    Returns:
        [batch_size] in int32, or int64 (which JAX has under `enable_x64` only) where the
        text is too long for that.

    Raises:
        ValueError: a window longer than the text.
    """
    width = seq_len + 1
    if width > n_tokens:
        raise ValueError(
            f"seq_len: a window of seq_len + 1 = {width} tokens is longer than the "
            f"{split} text, {n_tokens} tokens"
        )
    dtype = jnp.int32 if n_tokens <= MAX_TOKENS else jnp.int64
    return jax.random.randint(key, (batch_size,), 0, n_tokens - width + 1, dtype)


def unigram_entropy(text: np.ndarray) -> float:
    """Entropy of the byte frequencies of uint8 [n], -sum p ln p, nats.

    The loss on this very text of the best model that ignores context.
    """
    counts = np.bincount(text, minlength=N_BYTES)
    return _sum_minus_log(counts, np.full_like(counts, text.size)) / text.size


def bigram_entropy(text: np.ndarray) -> float:
    """Entropy of a byte given the one before it, H(next | previous), nats.

    From the counts of uint8 [n] itself: the loss on these n - 1 predictions of the best
    model that sees one byte. A model trained on another text cannot reach it with one
    byte of context; with more, it can go below.
    """
    pairs = np.bincount(
        text[:-1].astype(np.int32) * N_BYTES + text[1:], minlength=N_BYTES**2
    ).reshape(N_BYTES, N_BYTES)
    previous = np.broadcast_to(pairs.sum(axis=1, keepdims=True), pairs.shape)
    return _sum_minus_log(pairs, previous) / (text.size - 1)


def _sum_minus_log(counts: np.ndarray, totals: np.ndarray) -> float:
    """-sum counts * ln(counts / totals), where 0 ln 0 = 0."""
    seen = counts > 0
    return float(np.sum(counts[seen] * np.log(totals[seen] / counts[seen])))


def check_validation_fraction(fraction: float) -> None:
    """Refuses a fraction that leaves one side empty."""
    if not 0 < fraction < 1:
        raise ValueError(
            f"validation_fraction: expected a number strictly between 0 and 1, "
            f"got {fraction}"
        )
