"""Text or Parquet files to shards of token ids, once."""

import hashlib
import json
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from rich.console import Console

from experiments.config import Config
from experiments.data.corpus import Corpus, too_few
from experiments.data.dataset import SPLITS
from experiments.data.shards import HEADER_BYTES, dtype_for, write_shard
from experiments.data.tokens import MANIFEST
from experiments.errors import ConfigError, UserError

SCHEMA = 1
PREFIX = {"train": "train", "validation": "val"}  # of the files' names, as llm.c's
EDGE = 2**16  # bytes at both ends of an input file that its fingerprint sees


class Tokenize:
    """Writes what `data=corpus` reads as files for `data=tokens`; makes no run.

    In `outputs/<name>/`:

        train_000000.bin ...   token ids with the header of llm.c, in whole documents or
        val_000000.bin ...     pieces of a text file of about 1 MiB
        manifest.json          vocabulary, and of each shard its tokens and sha256

    A shard is there whole or not at all. Stopped at any moment, the same command goes on
    behind the last shard, and ends with the same bytes.

    shard_tokens: a shard ends with the piece that reaches so many.
    """

    traced = ()

    @staticmethod
    def check(*, shard_tokens: int = 100_000_000) -> None:
        if not 1 <= shard_tokens <= 2**30:
            raise ValueError(
                f"shard_tokens: expected 1 to 2**30 = {2**30}, got {shard_tokens}"
            )

    def __init__(self, *, shard_tokens: int = 100_000_000):
        self.shard_tokens = shard_tokens

    def answer(self, config: Config, console: Console) -> None:
        """Writes what is missing of the shards, and says what there is.

        Raises:
            UserError: other data than documents, ids or text that are not as they
                should be, or a folder that holds shards of something else.
        """
        source = config.data.build({}, "data")
        if not isinstance(source, Corpus):
            raise ConfigError(
                f"data: task=tokenize reads text and Parquet files (data=corpus), "
                f"got {config.data.name}"
            )
        try:
            manifest = self._write(config.folder, source, console)
        except ValueError as error:
            message = str(error)
            at = "" if message.startswith(("data", str(config.folder))) else "data."
            raise UserError(f"{at}{message}") from None
        except OSError as error:
            path = error.filename or config.folder
            raise UserError(f"{path}: {error.strerror}") from None
        for split in SPLITS:
            own = [s for s in manifest["shards"] if s["split"] == split]
            n_tokens = sum(s["n_tokens"] for s in own)
            line = f"{split}: {n_tokens:,} tokens in {len(own)} shards"
            console.print(line, highlight=False)
        folder = config.folder
        line = (
            f"train on them: data=tokens 'data.paths={folder}/train_*.bin' "
            f"'data.validation_paths={folder}/val_*.bin'"
        )
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _write(self, folder: pathlib.Path, source: Corpus, console: Console) -> dict:
        encoder = source.encoder()
        folder.mkdir(parents=True, exist_ok=True)
        manifest = self._begun(folder, source, encoder)
        if manifest["complete"]:
            console.print("finished before", highlight=False)
            return manifest
        for split in SPLITS:
            self._write_split(folder, source, encoder, split, manifest, console)
        manifest["complete"] = True
        _put(folder, manifest)
        return manifest

    def _begun(self, folder: pathlib.Path, source: Corpus, encoder) -> dict[str, Any]:
        """The manifest of an earlier launch, without shards that are gone; or a new one."""
        new = {
            "schema": SCHEMA,
            "complete": False,
            "inputs": self._fingerprint(source, encoder),
            "vocab_size": encoder.vocab_size,
            "unit": encoder.unit,
            "dtype": dtype_for(encoder.vocab_size).name,
            "shards": [],
        }
        path = folder / MANIFEST
        if not path.exists():
            if any(folder.glob("*.bin")):
                raise ValueError(
                    f"{folder}: holds .bin files without a {MANIFEST}: choose another "
                    "folder with name=..."
                )
            _put(folder, new)  # first: from here on the folder is known as ours
            return new
        try:
            old = json.loads(path.read_text(encoding="utf-8"))
            is_same = old["schema"] == SCHEMA and old["inputs"] == new["inputs"]
        except (ValueError, KeyError, TypeError):
            raise ValueError(
                f"{path}: expected the manifest of task=tokenize"
            ) from None
        if not is_same:
            raise ValueError(
                f"{folder}: holds shards of other files or settings: choose another "
                "folder with name=..., or remove it"
            )
        there = []
        for split in SPLITS:
            for shard in (s for s in old["shards"] if s["split"] == split):
                if not _is_whole(folder, shard, new["dtype"]):
                    old["complete"] = False
                    break
                there.append(shard)
        return {**old, "shards": there}

    def _write_split(
        self,
        folder: pathlib.Path,
        source: Corpus,
        encoder,
        split: str,
        manifest: dict[str, Any],
        console: Console,
    ) -> None:
        done = [s for s in manifest["shards"] if s["split"] == split]
        start = tuple(done[-1]["next"]) if done else None
        for tokens, behind in self._shards(source, encoder, split, start):
            name = f"{PREFIX[split]}_{len(done):06d}.bin"
            content = write_shard(folder / name, tokens.astype(manifest["dtype"]))
            shard = {
                "file": name,
                "split": split,
                "n_tokens": len(tokens),
                "sha256": hashlib.sha256(content).hexdigest(),
                "next": behind,
            }
            done.append(shard)
            manifest["shards"].append(shard)
            manifest["shards"].sort(key=lambda shard: shard["file"])
            _put(folder, manifest)
            console.print(f"{name}: {len(tokens):,} tokens", highlight=False)
        n_tokens = sum(s["n_tokens"] for s in done)
        if n_tokens < 2:
            raise ValueError(f"data: {too_few(split, n_tokens)}")

    def _shards(
        self, source: Corpus, encoder, split: str, start: tuple[int, int] | None
    ) -> Iterator[tuple[np.ndarray, tuple[int, int]]]:
        """Ids of each shard from `start` on, and where the next one begins."""
        waiting, n_waiting, behind = [], 0, None
        for document, ids in source.encoded(split, encoder, start):
            waiting.append(ids)
            n_waiting += len(ids)
            behind = document.next
            if n_waiting >= self.shard_tokens:
                yield np.concatenate(waiting), behind
                waiting, n_waiting = [], 0
        if n_waiting:
            yield np.concatenate(waiting), behind

    def _fingerprint(self, source: Corpus, encoder) -> str:
        """sha256 of what decides the shards; of the input files sizes and both ends."""
        settings = [encoder.name, source.column, self.shard_tokens, source.spans()]
        digest = hashlib.sha256(repr(settings).encode())
        for reader in source.readers().values():
            for file in reader.files:
                size = file.stat().st_size
                digest.update(f"{size}".encode())
                with file.open("rb") as opened:
                    digest.update(opened.read(EDGE))
                    opened.seek(max(0, size - EDGE))
                    digest.update(opened.read())
        return digest.hexdigest()


def _is_whole(folder: pathlib.Path, shard: dict[str, Any], dtype: str) -> bool:
    path = folder / shard["file"]
    n_bytes = HEADER_BYTES + shard["n_tokens"] * np.dtype(dtype).itemsize
    return path.is_file() and path.stat().st_size == n_bytes


def _put(folder: pathlib.Path, manifest: dict[str, Any]) -> None:
    temporary = folder / f".{MANIFEST}.tmp"
    temporary.write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    temporary.replace(folder / MANIFEST)
