"""64 tiny runs, 8 learning rates x 8 seeds x 200 steps: one launch against the usual ways.

The slow ways are measured on a few of the 64 and scaled, which is said in the table.
Nothing is pinned here: using all cores is part of what is compared.
"""

import itertools
import json
import random
import sys

from benchmarks import processes
from benchmarks.points import POINTS
from benchmarks.settings import Result, Settings
from benchmarks.tables import Table, mebibytes, significant
from benchmarks.targets import Outcome
from benchmarks.workers.ours_config import overrides

RATES = (1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2)
SEEDS = range(8)
STEPS = 200
N = len(RATES) * len(SEEDS)


def measure(settings: Settings) -> Result:
    point = POINTS["tiny"]
    common = [*overrides(point, str(settings.text)), f"steps={STEPS}"]
    counter = itertools.count()

    def folder() -> str:
        return str(settings.work / f"sweep{next(counter)}")

    def arguments(cache: str, *extra: str) -> list[str]:
        return [
            *common,
            *extra,
            f"runtime.output_dir={folder()}",
            f"runtime.compilation_cache={cache}",
        ]

    def sweep(cache: str, n_rates: int, *extra: str) -> processes.Finished:
        rates = ",".join(map(str, RATES[:n_rates]))
        axes = (f"optimizer.learning_rate={rates}", f"seed=range(0,{len(SEEDS)})")
        return processes.run(
            processes.launch("-m", *arguments(cache, *axes, *extra)),
        )

    k = 4 if settings.quick else 8
    chosen = random.Random(settings.seed).sample(
        list(itertools.product(RATES, SEEDS)), k
    )

    def alone(cache: str) -> list[list[str]]:
        return [
            arguments(cache, f"optimizer.learning_rate={rate}", f"seed={seed}")
            for rate, seed in chosen
        ]

    say = settings.progress
    say("sweep: one launch, cold")
    warm_cache = folder()
    cold = sweep(warm_cache, len(RATES))
    say("sweep: one launch, warm")
    warm = sweep(warm_cache, len(RATES))
    say("sweep: one launch of 16 runs, cold")
    sixteen = sweep(folder(), 2)
    say(f"sweep: {k} runs in one process, a compilation each")
    loop = processes.run(
        [sys.executable, "-m", "benchmarks.one_by_one", json.dumps(alone("null"))]
    )
    per_run = json.loads(loop.output.strip().splitlines()[-1])
    loop_start = loop.wall - sum(per_run)
    launches = [processes.launch(*a) for a in alone("null")]
    say(f"sweep: {k} processes in turn")
    in_turn = processes.run_all(launches, 1)
    say(f"sweep: {k} processes, two at a time, cold")
    pairs = processes.run_all([processes.launch(*a) for a in alone("null")], 2)
    say(f"sweep: {k} processes, two at a time, warm")
    processes.run(processes.launch(*arguments(warm_cache, "seed=99")))  # fills it
    pairs_warm = processes.run_all([processes.launch(*a) for a in alone(warm_cache)], 2)

    scaled = f"{k} runs x {N // k}"
    loop_wall = loop_start + N * sum(per_run) / k
    ways = [
        ("one launch, warm cache", warm.wall, warm.cpu, "all 64"),
        ("one launch, cold cache", cold.wall, cold.cpu, "all 64"),
        (
            "one process, one after another, a compilation each",
            loop_wall,
            loop.cpu * loop_wall / loop.wall,
            f"start + {scaled}",
        ),
    ]
    for name, (wall, cpu) in {
        "a process each, in turn, no cache": in_turn,
        "a process each, two at a time, no cache": pairs,
        "a process each, two at a time, warm cache": pairs_warm,
    }.items():
        ways.append((name, wall * N / k, cpu * N / k, scaled))
    rows = [
        [
            name,
            significant(wall),
            significant(60 * N / wall),
            significant(wall / cold.wall),
            significant(cpu),
            significant(cpu / cold.cpu),
            how,
        ]
        for name, wall, cpu, how in ways
    ]
    columns = ["", "wall s", "runs / minute", "wall / cold launch"]
    columns += ["CPU s", "CPU / cold launch", "measured"]
    notes = [
        f"{N} runs of {STEPS} steps at tiny, run directories, evaluation and final "
        "checkpoint included; whole processes, all cores."
    ]
    ratio = in_turn[0] * 16 / k / sixteen.wall
    return Result(
        [
            Table("Sweep of 64 tiny runs", columns, rows, notes),
            memory_table(settings, sweep, warm_cache, warm),
        ],
        [
            Outcome(
                "P10",
                ratio,
                significant(ratio),
                f"wall, cold; {k} processes measured, scaled to 16",
            )
        ],
        {
            "ways": [
                dict(zip(("way", "wall", "cpu", "how"), way, strict=True))
                for way in ways
            ],
            "launch_of_16_wall": sixteen.wall,
            "loop_seconds_per_run": per_run,
        },
    )


def memory_table(settings: Settings, sweep, cache: str, threads) -> Table:
    """Peak memory of a group of 64 against one run, less the states of the members."""
    from benchmarks.workers.ours_config import state_bytes

    of_one = state_bytes(POINTS["tiny"])
    settings.progress("sweep: memory of one run")
    alone = processes.run(
        processes.launch(
            *overrides(POINTS["tiny"], str(settings.text)),
            f"steps={STEPS}",
            f"runtime.output_dir={settings.work / 'memory'}",
            f"runtime.compilation_cache={cache}",
        )
    )
    rows = [["1 run", mebibytes(alone.peak_bytes), "-", "-", "-"]]
    for layout in ("threads", "map", "vmap"):
        if layout == "threads":
            peak = threads.peak_bytes
        else:
            settings.progress(f"sweep: memory, layout {layout}")
            peak = sweep(cache, len(RATES), f"runtime.layout={layout}").peak_bytes
        grown, states = peak - alone.peak_bytes, (N - 1) * of_one
        rows.append(
            [
                f"64 runs, {layout}",
                mebibytes(peak),
                mebibytes(grown),
                mebibytes(states),
                mebibytes(grown - states),
            ]
        )
    columns = ["", "peak MiB", "more than 1 run", "63 states", "beyond states"]
    notes = [
        "Peak resident memory of the whole process. A state is parameters and both "
        f"moments, {of_one / 2**20:.2f} MiB; threads keep only the running members' "
        "states, so there the last column can be negative."
    ]
    return Table("Memory of a group", columns, rows, notes)
