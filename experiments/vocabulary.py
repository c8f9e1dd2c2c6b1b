"""Text as the token ids that a model knows, and back."""

import json
import pathlib
from collections.abc import Sequence
from typing import Protocol

from experiments.config import Config
from experiments.data.corpus import Corpus
from experiments.data.encoders import parsed
from experiments.errors import UserError
from experiments.group import load_dataset

TOKENIZER = "tokenizer.json"
UNFINISHED = "\ufffd"  # what a part of a character is decoded to


class Vocabulary(Protocol):
    """Text <-> token ids."""

    def encode(self, text: str) -> list[int]: ...

    def decode(self, tokens: Sequence[int]) -> str: ...


class Bytes:
    """UTF-8 bytes; what is no text becomes a question mark in a lozenge."""

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, tokens: Sequence[int]) -> str:
        return bytes(tokens).decode(errors="replace")


class TokenizerFile:
    """A `tokenizer.json`, with the start token that it puts in front of a text.

    Raises:
        ValueError: there is no such file, it is none, or the package is not there.
    """

    def __init__(self, path: pathlib.Path):
        try:
            content = path.read_bytes()
        except OSError as error:
            raise ValueError(f"{path}: {error.strerror}") from None
        self._tokenizer = parsed(content, str(path))

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text).ids

    def decode(self, tokens: Sequence[int]) -> str:
        return self._tokenizer.decode(list(tokens))


def vocabulary_of_run(config: Config) -> Vocabulary:
    """Of the data that a run was trained on.

    Raises:
        ValueError: they hold no text.
    """
    data = config.data
    if data.cls is Corpus and data["tokenizer"] is not None:
        return TokenizerFile(pathlib.Path(data["tokenizer"]).expanduser())
    if load_dataset(data).unit == "byte":
        return Bytes()
    raise ValueError(f"data={data.name.lower()} holds no text")


def vocabulary_of_checkpoint(folder: pathlib.Path) -> Vocabulary:
    """Of the tokenizer beside the weights of a released model.

    Raises:
        ValueError: as `TokenizerFile`.
    """
    return TokenizerFile(folder / TOKENIZER)


def stops_of(folder: pathlib.Path) -> frozenset[int]:
    """Tokens that end a text: eos_token_id of config.json and generation_config.json.

    Raises:
        UserError: it is no token, or a list of some.
    """
    found: set[int] = set()
    for name in ("config.json", "generation_config.json"):
        path = folder / name
        if not path.exists():
            continue
        try:
            eos = json.loads(path.read_bytes()).get("eos_token_id")
        except (OSError, ValueError, AttributeError):
            raise UserError(f"{path}: expected a mapping in JSON") from None
        tokens = eos if isinstance(eos, list) else [] if eos is None else [eos]
        if any(type(token) is not int for token in tokens):
            raise UserError(
                f"{path}: eos_token_id: expected a token or a list of some, got {eos}"
            )
        found.update(tokens)
    return frozenset(found)


class Telling:
    """The text of tokens that come one by one, whole characters at a time."""

    def __init__(self, vocabulary: Vocabulary, prompt: Sequence[int]):
        self._vocabulary = vocabulary
        self._tokens = list(prompt)
        self._behind = len(self.whole())
        self._told = self._behind

    def whole(self) -> str:
        """Of all tokens, those of the prompt among them."""
        return self._vocabulary.decode(self._tokens)

    def text(self) -> str:
        """What came behind the prompt."""
        return self.whole()[self._behind :]

    def add(self, token: int) -> str:
        """What is sure of the text with one token more and was not told yet."""
        self._tokens.append(token)
        # From all tokens: what a token stands for may depend on those before it.
        sure = self.whole().rstrip(UNFINISHED)
        new = sure[self._told :]
        self._told += len(new)
        return new

    def rest(self) -> str:
        """What was held back."""
        return self.whole()[self._told :]
