"""From the command to the first step, cold and warm, and the commands that only talk."""

import statistics
import sys

from benchmarks import processes
from benchmarks.points import POINTS
from benchmarks.settings import Result, Settings
from benchmarks.tables import Table, mebibytes, significant
from benchmarks.targets import Outcome, not_measured
from benchmarks.workers.ours_config import overrides

STEPS = 50  # one call of the compiled function


def measure(settings: Settings) -> Result:
    n = 2 if settings.quick else 5
    rows, raw = [], {}
    p11 = None
    for name in ("tiny", "small"):
        for cache in ("cold", "warm"):
            settings.progress(f"startup: {name}, {cache}")
            runs = [training(settings, name, cache, i) for i in range(n)]
            rows.append(row(f"{name}, {STEPS} steps, {cache} cache", runs))
            raw[f"{name} {cache}"] = [vars(r) | {"output": ""} for r in runs]
            if (name, cache) == ("small", "warm"):
                p11 = median(runs, "first_row_cpu")
    for arguments in (("--help",), ("--cfg", "job"), ("norm=no_such_norm",)):
        settings.progress(f"startup: {' '.join(arguments)}")
        runs = [talking(arguments, settings.core) for _ in range(n)]
        rows.append(row("launch.py " + " ".join(arguments), runs))
        raw[" ".join(arguments)] = [vars(r) | {"output": ""} for r in runs]
    settings.progress("startup: imports")
    runs = [imports(settings.core) for _ in range(n)]
    rows.append(row("python -c 'import jax, optax, flax.nnx'", runs))
    raw["imports"] = [vars(r) | {"output": ""} for r in runs]
    columns = ["", "first rows, wall s", "first rows, CPU s", "exit, wall s"]
    columns += ["exit, CPU s", "peak MiB"]
    notes = [
        f"One core, medians of {n}. First rows: metrics of the first {STEPS} steps are "
        "on disk. Before the exit comes the final checkpoint. "
        "`norm=no_such_norm` is a command that is refused. The imports are what the "
        "libraries take of every start, and tell a slow hour of a machine from a quick "
        "one.",
    ]
    return Result(
        [Table("Start-up", columns, rows, notes)],
        [outcome(p11)],
        raw,
    )


def outcome(p11: float | None) -> Outcome:
    if p11 is None:
        return not_measured("P11", "no rows were seen")
    return Outcome("P11", p11, significant(p11), "to the rows of 50 steps, one core")


def training(settings: Settings, name: str, cache: str, i: int) -> processes.Finished:
    """One short run; the first warm one finds what the last cold one left."""
    folder = settings.work / f"startup_{name}_{cache}{i}"
    used = settings.work / f"startup_cache_{name}{i if cache == 'cold' else 0}"
    command = processes.launch(
        *overrides(POINTS[name], str(settings.text)),
        f"steps={STEPS}",
        "task.eval_every=null",
        f"runtime.output_dir={folder}",
        f"runtime.compilation_cache={used}",
    )
    return processes.run(
        command, core=settings.core, watch=(folder, "*/*/metrics.jsonl")
    )


def imports(core: int) -> processes.Finished:
    """The libraries alone, without a line of ours."""
    command = [sys.executable, "-c", "import jax, optax, flax.nnx"]
    return processes.run(command, core=core)


def talking(arguments: tuple[str, ...], core: int) -> processes.Finished:
    fails = arguments[0].startswith("norm=")
    return processes.run(
        processes.launch(*arguments), core=core, expected_code=1 if fails else 0
    )


def median(runs: list[processes.Finished], key: str) -> float | None:
    values = [getattr(r, key) for r in runs]
    return None if None in values else statistics.median(values)


def row(name: str, runs: list[processes.Finished]) -> list[str]:
    keys = ("first_row", "first_row_cpu", "wall", "cpu")
    values = [median(runs, key) for key in keys]
    return [
        name,
        *("-" if v is None else significant(v) for v in values),
        mebibytes(median(runs, "peak_bytes")),
    ]
