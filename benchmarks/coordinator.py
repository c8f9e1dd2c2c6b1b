"""Keeps peers alive side by side and gives them work in turn.

Within a round every peer does its steps once, in random order, while the others wait;
a slow spell of the machine then falls on all of them, and a ratio is taken within the
round. The statistic is the median over rounds, with the extremes beside it.
"""

import dataclasses
import importlib.util
import json
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.points import Point

ROOT = pathlib.Path(__file__).parents[1]


class PeerError(RuntimeError):
    """A peer that could not be built or died; the message ends with its last words."""


@dataclasses.dataclass(frozen=True)
class Spec:
    """A peer that may be measured.

    name: how it is called in tables; module: of `benchmarks/workers`.
    needs: top-level modules that must be importable.
    checkout: command-line option that gives its source folder, if it is no package.
    steps: units per round; None takes the point's.
    """

    name: str
    module: str
    options: tuple[tuple[str, Any], ...] = ()
    needs: tuple[str, ...] = ()
    checkout: str | None = None
    steps: int | None = None


def find(
    specs: Sequence[Spec],
    checkouts: dict[str, str],
    importable: Callable[[str], Any] = importlib.util.find_spec,
) -> tuple[list[Spec], dict[str, str]]:
    """The peers that can run here, and for the others what is missing.

    Raises:
        ValueError: a checkout that is no folder.
    """
    found, missing = [], {}
    for spec in specs:
        lacking = [name for name in spec.needs if importable(name) is None]
        if spec.checkout and not checkouts.get(spec.checkout):
            missing[spec.name] = f"needs a checkout: --{spec.checkout} PATH"
        elif lacking:
            missing[spec.name] = f"not installed: {', '.join(lacking)}"
        elif spec.checkout:
            folder = pathlib.Path(checkouts[spec.checkout]).expanduser()
            if not folder.is_dir():
                raise ValueError(f"--{spec.checkout}: expected a folder, got {folder}")
            options = (*spec.options, ("checkout", str(folder.resolve())))
            found.append(dataclasses.replace(spec, options=options))
        else:
            found.append(spec)
    return found, missing


class Peer:
    """A worker process and its side of the protocol.

    Args:
        label: its name in the results.
        command: starts the process; by default the worker module of `spec`.
    """

    def __init__(self, label: str, command: Sequence[str]):
        self.label = label
        self.info: dict[str, Any] = {}
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (until close)
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def wait_ready(self) -> None:
        self.info = self._read()

    def ask(self, command: str, n: int) -> dict[str, float]:
        """Seconds and results of `n` units of a command."""
        try:
            self._process.stdin.write(f"{command} {n}\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # dead: reading says why
        return self._read()

    def _read(self) -> dict:
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            self._errors.seek(0)
            words = self._errors.read().strip().splitlines()[-5:]
            raise PeerError(
                f"{self.label}: ended with code {code}\n" + "\n".join(words)
            )
        node = json.loads(line)
        if "error" in node:
            raise PeerError(f"{self.label}: {node['error']}")
        return node

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.stdin.close()
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._process.stdout.close()
        self._errors.close()


def worker_command(
    spec: Spec, point: Point, text: pathlib.Path, core: int | None
) -> list[str]:
    command = [sys.executable, "-m", "benchmarks.worker", spec.module]
    command += ["--point", point.to_json(), "--text", str(text)]
    command += ["--options", json.dumps(dict(spec.options))]
    return command if core is None else [*command, "--core", str(core)]


@dataclasses.dataclass(frozen=True)
class Work:
    """What one peer does in a turn: `n` units of `command`.

    label: of the samples; the peer's own unless it has several turns in a round.
    """

    peer: Peer
    n: int
    command: str = "run"
    label: str = ""

    def __post_init__(self):
        object.__setattr__(self, "label", self.label or self.peer.label)


def rounds(
    works: Sequence[Work],
    n_rounds: int,
    *,
    seed: int = 0,
    progress: Callable[[str], None] = lambda text: None,
) -> dict[str, list[dict[str, float]]]:
    """Label -> per round {"wall", "cpu"} per unit, with what else the peer reported."""
    shuffled = random.Random(seed)
    samples: dict[str, list] = {w.label: [] for w in works}
    if len(samples) < len(works):
        raise ValueError(f"expected distinct labels, got {[w.label for w in works]}")
    for i in range(n_rounds):
        for work in shuffled.sample(works, len(works)):
            progress(f"round {i + 1} of {n_rounds}: {work.label}")
            sample = work.peer.ask(work.command, work.n)
            for clock in ("wall", "cpu"):
                sample[clock] /= work.n
            samples[work.label].append(sample)
    return samples


@dataclasses.dataclass(frozen=True)
class Ratio:
    """Median over rounds of one side over the other, and the extremes."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, above: Sequence[float], below: Sequence[float]) -> "Ratio":
        """Raises ValueError where the two do not have the same rounds."""
        ratios = [a / b for a, b in zip(above, below, strict=True)]
        return cls(statistics.median(ratios), min(ratios), max(ratios))

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f} .. {self.high:.2f})"


def clock(samples: list[dict[str, float]], name: str = "cpu") -> list[float]:
    return [s[name] for s in samples]
