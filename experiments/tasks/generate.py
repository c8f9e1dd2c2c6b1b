"""What a model says: the text that it goes on with."""

import json
import math
import pathlib
import time
from collections.abc import Iterator
from typing import Any

from flax import nnx
from rich.console import Console

from blocks import generation
from blocks.modes import set_training
from experiments.config import Config
from experiments.errors import ConfigError, UserError
from experiments.fingerprint import is_run
from experiments.trained import trained
from experiments.vocabulary import (
    Telling,
    Vocabulary,
    stops_of,
    vocabulary_of_checkpoint,
    vocabulary_of_run,
)
from experiments.weights import load

FILE = "generate.json"
SCHEMA = 1
WARM = 2  # tokens that come with a compilation each
INSTEAD = "token ids go without: task.tokens=[1,2,3]"


class Generate:
    """Goes on with a text, each token the likeliest one; makes no run.

    Prints the text as it comes and writes `outputs/<name>/generate.json`:

        source             folder of the checkpoint or the run
        prompt             as given, or of the tokens given; null without a vocabulary
        prompt_tokens      ids
        tokens             ids that followed
        text               of those; null without a vocabulary
        stopped            whether an end-of-text token ended it
        tokens_per_second  once both programs are compiled; null of fewer than 4 tokens

    prompt: text to go on with, through tokenizer.json beside the weights, or as the data
        of a run have it.
    tokens: ids in the place of a prompt.
    n_tokens: that follow at most; an eos_token_id of the checkpoint ends it before.
    run: folder of a run, in the place of model.from_checkpoint=DIR.
    """

    traced = ()
    takes_weights = True

    @staticmethod
    def check(
        *,
        prompt: str | None = None,
        tokens: tuple[int, ...] | None = None,
        n_tokens: int = 64,
        run: str | None = None,
    ) -> None:
        if (prompt is None) == (tokens is None):
            raise ValueError(
                "prompt: expected a text to go on with, or tokens=[1,2,3], "
                f"got {'neither' if prompt is None else 'both'}"
            )
        if n_tokens < 1:
            raise ValueError(f"n_tokens must be at least 1, got {n_tokens}")

    def __init__(
        self,
        *,
        prompt: str | None = None,
        tokens: tuple[int, ...] | None = None,
        n_tokens: int = 64,
        run: str | None = None,
    ):
        self.prompt = prompt
        self.tokens = tokens
        self.n_tokens = n_tokens
        self.run = run

    def answer(self, config: Config, console: Console) -> None:
        """Prints the text and writes it.

        Raises:
            UserError: there is no model, it cannot go on with a text, the prompt is none
                of its tokens, or the folder cannot be written.
        """
        source = self._source(config)
        of_run = self.run is not None or is_run(source)
        vocabulary = self._vocabulary(source, of_run)
        prompt = self._prompt(vocabulary)
        model = self._model(config)
        try:
            generation.check(model)
        except ValueError as error:
            raise ConfigError(f"model: {error}") from None
        key = "task.prompt" if self.tokens is None else "task.tokens"
        try:
            generation.checked(prompt, model.table.shape[0])
        except ValueError as error:
            raise ConfigError(f"{key}: {error}") from None
        stop = frozenset() if of_run else stops_of(source)
        try:
            found = generation.generate(model, prompt, self.n_tokens, stop=stop)
            node = self._told(source, vocabulary, prompt, found, stop, console)
        except ValueError as error:  # more tokens than there are positions
            raise ConfigError(f"task.n_tokens: {error}") from None
        path = _write(config.folder / FILE, node)
        line = f"everything is in {path}"
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _source(self, config: Config) -> pathlib.Path:
        """Folder of the model."""
        given = config.weights.path
        if (self.run is None) == (given is None):
            raise ConfigError(
                "task=generate: expected a model, model.from_checkpoint=DIR or task.run="
                f"FOLDER, got {'neither' if given is None else 'both'}"
            )
        return pathlib.Path(given if self.run is None else self.run).expanduser()

    def _model(self, config: Config) -> nnx.Module:
        if self.run is not None:
            return trained(self.run)[0]
        layout, params, rest = load(config)
        model = layout.merge(params, rest)
        set_training(model, False)
        return model

    def _vocabulary(self, source: pathlib.Path, of_run: bool) -> Vocabulary | None:
        """What a text is to the model; None where only ids are asked for."""
        try:
            if of_run:
                return vocabulary_of_run(config_of_run(source))
            return vocabulary_of_checkpoint(source)
        except ValueError as error:
            if self.prompt is not None:
                raise ConfigError(f"task.prompt: {error}; {INSTEAD}") from None
            return None

    def _prompt(self, vocabulary: Vocabulary | None) -> list[int]:
        return (
            vocabulary.encode(self.prompt) if self.tokens is None else list(self.tokens)
        )

    def _told(
        self,
        source: pathlib.Path,
        vocabulary: Vocabulary | None,
        prompt: list[int],
        found: Iterator[int],
        stop: frozenset[int],
        console: Console,
    ) -> dict[str, Any]:
        """Contents of generate.json, told token by token."""

        def say(text):
            console.print(
                text, end="", markup=False, emoji=False, highlight=False, soft_wrap=True
            )

        telling = None if vocabulary is None else Telling(vocabulary, prompt)
        tokens, times = [], []
        for token in found:
            if not tokens:  # after what may be wrong with the model
                say(" ".join(map(str, prompt)) if telling is None else telling.whole())
            tokens.append(token)
            times.append(time.perf_counter())
            say(f" {token}" if telling is None else telling.add(token))
        say("\n" if telling is None else f"{telling.rest()}\n")
        seconds = times[-1] - times[min(WARM, len(times)) - 1]
        speed = (len(times) - WARM) / seconds if seconds > 0 else math.nan
        if math.isfinite(speed):
            line = f"{len(tokens)} tokens, {speed:.3g} a second"
            console.print(line, highlight=False)
        return {
            "schema": SCHEMA,
            "source": str(source),
            "prompt": None if telling is None else vocabulary.decode(prompt),
            "prompt_tokens": prompt,
            "tokens": tokens,
            "text": None if telling is None else telling.text(),
            "stopped": tokens[-1] in stop,
            "tokens_per_second": speed if math.isfinite(speed) else None,
        }


def config_of_run(folder: pathlib.Path) -> Config:
    """What a run's folder says that it is.

    Raises:
        UserError: it holds no run.
    """
    try:
        node = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError):
        raise UserError(
            f"{folder}: expected the folder of a run (no config.json)"
        ) from None
    return Config.parse(node)


def _write(path: pathlib.Path, node: dict[str, Any]) -> pathlib.Path:
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(node, indent=1) + "\n", encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        raise UserError(f"{path}: cannot write there ({error})") from None
    return path
