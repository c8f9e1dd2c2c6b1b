"""One peer in a process of its own: builds, says so, then works when asked.

    python -m benchmarks.worker NAME --point JSON --text FILE [--core N] [...]

Protocol, one line of JSON each way. After building and one warming step the worker
prints {"ready": true, ...}; then for every line `COMMAND K` on its standard input it
does the work, waits until the devices are done, and prints {"wall": seconds, "cpu":
seconds, "loss": last loss}, both for all K. An empty input ends it. Whatever else the
peer's libraries print goes to the standard error.
"""

import argparse
import dataclasses
import importlib
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks.points import Point


@dataclasses.dataclass
class Built:
    """What `build(point, options)` of a module in `benchmarks/workers` returns.

    commands: name -> function of the number of units; it returns when the work is done,
        with a dict of numbers to report (`loss` for training steps).
    info: facts about the peer: n_params, matmul_params, versions ...
    warm_up: commands to run once, for one unit, before the peer is ready.
    """

    commands: dict[str, Callable[[int], dict[str, float]]]
    info: dict[str, Any]
    warm_up: tuple[str, ...] = ("run",)


def pin(core: int | None) -> None:
    """Keeps this process on one core; before jax or torch size their thread pools."""
    if core is not None:
        os.sched_setaffinity(0, {core})


def timed(work: Callable[[int], dict], n: int) -> dict[str, float]:
    """{"wall", "cpu"} of work(n), with what it returned."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = work(n)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return {"wall": wall, "cpu": cpu, **result}


def peak_bytes() -> int:
    """Largest resident size of this process so far (Linux counts in KiB)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def serve(make: Callable[[], Built], commands, answers) -> None:
    """Builds, then answers one line per command until the input ends."""

    def answer(node: dict) -> None:
        answers.write(json.dumps(node) + "\n")
        answers.flush()

    started = time.perf_counter()
    built = make()
    for name in built.warm_up:
        built.commands[name](1)
    answer(
        {
            "ready": True,
            **built.info,
            "startup_wall": time.perf_counter() - started,
            "startup_cpu": time.process_time(),
        }
    )
    for line in commands:
        name, _, count = line.strip().partition(" ")
        if name not in built.commands or not count.isdigit():
            known = ", ".join(built.commands)
            answer({"error": f"expected one of {known} and a count, got {line!r}"})
            continue
        result = timed(built.commands[name], int(count))
        answer({**result, "peak_bytes": peak_bytes()})


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.worker")
    parser.add_argument("name", help="a module of benchmarks/workers")
    parser.add_argument("--point", required=True, type=Point.from_json)
    parser.add_argument("--text", required=True)
    parser.add_argument("--core", type=int)
    parser.add_argument("--options", type=json.loads, default={})
    parsed = parser.parse_args(arguments)
    pin(parsed.core)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # stray prints must not look like answers

    def make() -> Built:
        module = importlib.import_module(f"benchmarks.workers.{parsed.name}")
        return module.build(parsed.point, parsed.text, **parsed.options)

    serve(make, sys.stdin, answers)


if __name__ == "__main__":
    main()
