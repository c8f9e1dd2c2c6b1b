"""Token ids in binary files, as nanoGPT, llm.c and modded-nanogpt write them."""

import dataclasses
import hashlib
import json
from pathlib import Path

import numpy as np

from experiments.data import text
from experiments.data.dataset import Dataset, split_key
from experiments.data.files import files_of
from experiments.data.shards import DTYPES, shard_at
from experiments.data.token_text import TokenText

RESIDENT_BYTES = 2**30  # more than this stays in its files and is streamed
MANIFEST = "manifest.json"  # beside shards that task=tokenize wrote


class Tokens:
    """Windows of token files of any size.

    The files of a split are one text, in order of name. Up to `RESIDENT_BYTES` both
    splits are put on the device; of more the host reads the windows of each chunk of
    steps while the device is at the chunk before. The batches are the same either way.

    Args:
        paths: files or patterns (`tokens/train_*.bin`), one or a list.
        validation_paths: likewise; None holds out the end of `paths`.
        validation_fraction: share of the tokens held out, rounded down; only where
            `validation_paths` is None.
        dtype: of ids in files without a header (nanoGPT): uint16 or uint32. None: files
            begin with the header of llm.c, which says it.
        vocab_size: number of token ids; None takes it from the `manifest.json` beside
            the first file. A model may have more (`model.vocab_size=50304` for 50257).
    """

    traced = ()

    @staticmethod
    def check(
        *,
        paths: str | tuple | None = None,
        validation_paths: str | tuple | None = None,
        validation_fraction: float = 0.05,
        dtype: str | None = None,
        vocab_size: int | None = None,
    ) -> None:
        """Refuses files that are missing or not what they should be; reads headers."""
        text.check_validation_fraction(validation_fraction)
        if dtype is not None and dtype not in DTYPES:
            raise ValueError(
                f"dtype: expected null, {' or '.join(DTYPES)}, got {dtype!r}"
            )
        _texts(paths, validation_paths, validation_fraction, dtype, vocab_size)

    def __init__(
        self,
        *,
        paths: str | tuple | None = None,
        validation_paths: str | tuple | None = None,
        validation_fraction: float = 0.05,
        dtype: str | None = None,
        vocab_size: int | None = None,
    ):
        self.paths = paths
        self.validation_paths = validation_paths
        self.validation_fraction = validation_fraction
        self.dtype = dtype
        self.vocab_size = vocab_size

    def load(self) -> Dataset:
        """Reads small files whole, with every id checked; of large ones a few pieces.

        Raises:
            ValueError: as `check`, or an id beyond the vocabulary.
        """
        texts = _texts(
            self.paths,
            self.validation_paths,
            self.validation_fraction,
            self.dtype,
            self.vocab_size,
        )
        prints = [texts[split].fingerprint() for split in sorted(texts)]
        is_large = sum(t.n_bytes for t in texts.values()) > RESIDENT_BYTES
        return Dataset(
            arrays={} if is_large else {s: t.whole() for s, t in texts.items()},
            vocab_size=texts["train"].vocab_size,
            unit="token",
            fingerprint=hashlib.sha256(
                "tokens {} {}".format(*prints).encode()
            ).hexdigest(),
            train_tokens=texts["train"].n_tokens,
            validation_tokens=texts["validation"].n_tokens,
            references={},
            stream=TokenStream(texts) if is_large else None,
        )

    def batch(self, arrays, key, *, split, batch_size, seq_len):
        """Random windows, int32 [batch_size, seq_len + 1]; see `text.window_batch`."""
        return text.window_batch(
            arrays, key, split=split, batch_size=batch_size, seq_len=seq_len
        )


@dataclasses.dataclass(frozen=True)
class TokenStream:
    """`text.window_batch` in two halves: offsets are drawn, and windows read there."""

    texts: dict[str, TokenText]

    @property
    def dtype(self) -> np.dtype:
        return self.texts["train"].dtype

    def draw(self, key, *, split: str, batch_size: int, seq_len: int):
        """Offsets of windows, [batch_size]; see `text.window_starts`."""
        key = split_key(key, split)
        n_tokens = self.texts[split].n_tokens
        return text.window_starts(
            key, n_tokens, split=split, batch_size=batch_size, seq_len=seq_len
        )

    def read(self, drawn: np.ndarray, *, split: str, seq_len: int) -> np.ndarray:
        """Windows [*drawn.shape, seq_len + 1]; see `TokenText.windows`."""
        return self.texts[split].windows(drawn, seq_len + 1)


def _texts(paths, validation_paths, fraction, dtype, vocab_size):
    """The texts of the splits; refuses what they cannot be made of."""
    files = files_of(paths)
    vocab_size = _vocab_size(vocab_size, files[0])
    _check_room(vocab_size, dtype)
    train = _text(files, dtype, vocab_size)
    if validation_paths is not None:
        files = files_of(validation_paths, "validation_paths")
        validation = _text(files, dtype, vocab_size)
    else:
        train, validation = train.split(int(train.n_tokens * fraction))
    for split, tokens in (("train", train), ("validation", validation)):
        if tokens.n_tokens < 2:
            raise ValueError(
                f"paths: expected at least 2 tokens of {split} text, "
                f"got {tokens.n_tokens}"
            )
    if train.dtype != validation.dtype:
        raise ValueError(
            f"validation_paths: expected {train.dtype.name} as in the training files, "
            f"got {validation.dtype.name}"
        )
    return {"train": train, "validation": validation}


def _text(files: list[Path], dtype: str | None, vocab_size: int) -> TokenText:
    shards = [shard_at(file, dtype) for file in files]
    for shard in shards:
        if shard.dtype != shards[0].dtype:
            raise ValueError(
                f"paths: {shard.path} holds {shard.dtype.name}, the files before it "
                f"{shards[0].dtype.name}: expected one type"
            )
    return TokenText.of(shards, vocab_size)


def _vocab_size(given: int | None, file: Path) -> int:
    """The vocabulary as said, or as in the manifest beside a file."""
    manifest = file.parent / MANIFEST
    if given is not None:
        if not 1 <= given < 2**31:
            raise ValueError(f"vocab_size: expected 1 to 2**31 - 1, got {given}")
        return given
    if not manifest.is_file():
        raise ValueError(
            "vocab_size: expected the number of ids of the tokenizer (50257 for GPT-2), "
            f"got null and no {MANIFEST} beside {file}"
        )
    try:
        node = json.loads(manifest.read_text(encoding="utf-8"))
        vocab_size, is_complete = int(node["vocab_size"]), node.get("complete", True)
    except (ValueError, KeyError, TypeError):
        raise ValueError(
            f"vocab_size: {manifest}: expected a vocab_size in it"
        ) from None
    if not is_complete:
        raise ValueError(
            f"paths: {manifest} is not complete: run task=tokenize once more, it goes on"
        )
    return vocab_size


def _check_room(vocab_size: int, dtype: str | None) -> None:
    """Ids that do not fit would have wrapped when the file was written."""
    if dtype == "uint16" and vocab_size > 2**16:
        raise ValueError(
            f"dtype: uint16 holds ids up to 65535, vocab_size is {vocab_size}: "
            "expected uint32"
        )
