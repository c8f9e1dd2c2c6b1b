"""Texts with tokens taken out, for a model that reads them from both sides."""

import dataclasses
import hashlib

import jax
import jax.numpy as jnp
import numpy as np

from experiments.data.dataset import (
    MASKED_TEXTS,
    TOKENS,
    Dataset,
    Stream,
    split_key,
)

IGNORED = -100  # the label of a token that is not to be predicted
MASKS = 2  # folded into the key of a batch; 0 and 1 are the splits


class Masked:
    """Windows of any source of tokens, of which some have to be found again.

    Of the n tokens of a window max(1, round(rate n)) are chosen, every set of so many as
    likely as another. Each of them becomes the mask token with probability `masked`, a
    token drawn uniformly from the vocabulary of the text with probability `random`, and
    stays as it is else. A window always asks for the same number, so the mean over a
    batch is the mean over its parts (`accumulate`, devices).

    The windows are those of the text itself: `batch_size` of `seq_len` tokens, for the
    same seed and step the inputs that a decoder on that text sees. The mask token is a
    vocabulary id of its own, behind those of the text.

    `unigram` is the loss of the best model that ignores everything, the token at the
    place itself included; one that only looks there knows a little more, since a token
    that is not masked is often right. Other references of the text are no floors for a
    model that sees both sides, and are left out.

    Args:
        text: a source of tokens.
        rate: share of the tokens that are chosen.
        masked, random: shares of these; the rest is left unchanged.

    Source: arXiv 1810.04805 section 3.1; the number per window is that of google-research/
    bert create_pretraining_data.py, without its limit.
    """

    traced = ()

    @staticmethod
    def check(*, rate: float = 0.15, masked: float = 0.8, random: float = 0.1) -> None:
        """Refuses shares that are none."""
        if not 0 < rate <= 1:
            raise ValueError(f"rate: expected a share above 0, at most 1, got {rate}")
        for key, share in (("masked", masked), ("random", random)):
            if not 0 <= share <= 1:
                raise ValueError(f"{key}: expected a share from 0 to 1, got {share}")
        if masked + random > 1 + 1e-9:
            raise ValueError(
                f"masked, random: expected at most 1 together, got {masked} + {random}"
            )

    def __init__(
        self, *, text, rate: float = 0.15, masked: float = 0.8, random: float = 0.1
    ):
        self.text = text
        self.rate = rate
        self.masked = masked
        self.random = random

    def load(self) -> Dataset:
        """Loads the text.

        Raises:
            ValueError: it cannot be read, or is none.
        """
        try:
            text = self.text.load()
        except ValueError as error:
            told = str(error)
            is_whole = told.startswith("data")  # else it begins with a key of the text
            told = told.replace("data.", "data.text.") if is_whole else f"text.{told}"
            raise ValueError(told) from None
        if text.holds != TOKENS:
            raise ValueError(
                f"text: expected a source of tokens, {type(self.text).__name__} has "
                f"{text.holds}"
            )
        name = f"masked {self.rate} {self.masked} {self.random} {text.fingerprint}"
        mask_token = text.vocab_size
        is_streamed = text.stream is not None
        return dataclasses.replace(
            text,
            arrays={}
            if is_streamed
            else {**text.arrays, "mask_token": np.asarray(mask_token, np.int32)},
            vocab_size=text.vocab_size + 1,
            unit=f"masked {text.unit}",
            fingerprint=hashlib.sha256(name.encode()).hexdigest(),
            references={k: v for k, v in text.references.items() if k == "unigram"},
            stream=MaskedStream(text.stream, self, mask_token) if is_streamed else None,
            period=None,
            holds=MASKED_TEXTS,
        )

    def batch(self, arrays, key, *, split, batch_size, seq_len) -> dict[str, jax.Array]:
        """`taken_out` of windows of the text."""
        windows = self.text.batch(
            arrays, key, split=split, batch_size=batch_size, seq_len=seq_len
        )
        return self.taken_out(windows, arrays["mask_token"], key, split=split)

    def taken_out(self, windows, mask_token, key, *, split) -> dict[str, jax.Array]:
        """int32 [batch, seq_len + 1] -> "tokens", "labels", "segments" [batch, seq_len].

        Labels are the tokens of the text at the chosen places and -100 elsewhere. There
        is one segment, 0. The last token of a window is left out.
        """
        tokens = windows[:, :-1]
        key = split_key(jax.random.fold_in(key, MASKS), split)
        where, what, which = jax.random.split(key, 3)
        n = max(1, round(self.rate * tokens.shape[1]))
        # Each row is a permutation of the places, all equally likely.
        order = jnp.argsort(jax.random.bits(where, tokens.shape, jnp.uint32), axis=1)
        chosen = order < n
        part = jax.random.uniform(what, tokens.shape, jnp.float32)
        # Drawn below the mask token, which is the number of ids of the text.
        drawn = jax.random.randint(which, tokens.shape, 0, mask_token, jnp.int32)
        shown = jnp.where(part < self.masked + self.random, drawn, tokens)
        shown = jnp.where(part < self.masked, mask_token, shown)
        return {
            "tokens": jnp.where(chosen, shown, tokens),
            "labels": jnp.where(chosen, tokens, IGNORED),
            "segments": jnp.zeros_like(tokens),
        }


@dataclasses.dataclass(frozen=True)
class MaskedStream:
    """Windows that the host reads, masked on the device."""

    text: Stream
    source: Masked
    mask_token: int

    @property
    def dtype(self) -> np.dtype:
        return self.text.dtype

    def draw(self, key, *, split: str, batch_size: int, seq_len: int):
        """As the text's."""
        return self.text.draw(key, split=split, batch_size=batch_size, seq_len=seq_len)

    def read(self, drawn: np.ndarray, *, split: str, seq_len: int) -> np.ndarray:
        """As the text's."""
        return self.text.read(drawn, split=split, seq_len=seq_len)

    def finish(self, windows, key, *, split: str) -> dict[str, jax.Array]:
        """`Masked.taken_out`."""
        return self.source.taken_out(windows, self.mask_token, key, split=split)
