"""What a command measures with, and what it gives back."""

import dataclasses
import pathlib
import platform
from collections.abc import Callable
from typing import Any

from benchmarks.points import POINTS, Point
from benchmarks.tables import Table
from benchmarks.targets import Outcome


@dataclasses.dataclass(frozen=True)
class Settings:
    """core: what peers are pinned to. work: a folder for scratch, deleted afterwards."""

    out: pathlib.Path
    work: pathlib.Path
    text: pathlib.Path
    core: int
    rounds: int = 7
    quick: bool = False
    seed: int = 0
    points: tuple[Point, ...] = tuple(POINTS.values())
    peers: tuple[str, ...] | None = None
    checkouts: dict[str, str] = dataclasses.field(default_factory=dict)
    progress: Callable[[str], None] = lambda text: None


@dataclasses.dataclass
class Result:
    """raw: everything a table was made from, as plain data."""

    tables: list[Table]
    outcomes: list[Outcome] = dataclasses.field(default_factory=list)
    raw: dict[str, Any] = dataclasses.field(default_factory=dict)


def machine() -> dict[str, Any]:
    """The processor and the kernel, as far as Linux tells."""
    cpuinfo = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    models = [x.split(":", 1)[1].strip() for x in cpuinfo if x.startswith("model name")]
    return {
        "processor": models[0] if models else platform.processor(),
        "cores": len(models),
        "system": platform.platform(),
        "python": platform.python_version(),
    }
