"""python -m benchmarks COMMAND, all of them with `all`; see docs/benchmarks.md."""

import argparse
import json
import os
import pathlib
import sys
import tempfile
import time

from rich.console import Console

from benchmarks import depth, growth, programs, settings, single, startup, sweep
from benchmarks.points import POINTS, Point
from benchmarks.settings import Result, Settings
from benchmarks.targets import targets_table
from benchmarks.text import write_text

COMMANDS = {
    "single": single.measure,
    "sweep": sweep.measure,
    "depth": depth.measure,
    "startup": startup.measure,
    "programs": programs.measure,
    "growth": growth.measure,
}
CHECKOUTS = ("nanogpt", "nanodo")


def points_of(text: str) -> list[Point]:
    for name in text.split(","):
        if name not in POINTS:
            raise argparse.ArgumentTypeError(
                f"no point {name!r}, expected some of {','.join(POINTS)}"
            )
    return [POINTS[name] for name in text.split(",")]


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measures the framework against peers and its own targets.",
    )
    parser.add_argument("command", choices=[*COMMANDS, "all"])
    parser.add_argument(
        "--points",
        type=points_of,
        default=list(POINTS.values()),
        help=f"of {','.join(POINTS)}; for single",
    )
    parser.add_argument(
        "--peers",
        type=lambda text: text.split(","),
        help="parts of the names of peers; for single (default: all that are here)",
    )
    parser.add_argument("--rounds", type=int, help="7; with --quick 3")
    parser.add_argument("--quick", action="store_true", help="fewer rounds and sizes")
    parser.add_argument("--out", default="outputs/benchmarks")
    parser.add_argument("--core", type=int, help="to pin to; default: the last one")
    parser.add_argument("--seed", type=int, default=0, help="of the order of turns")
    for name in CHECKOUTS:
        parser.add_argument(f"--{name}", metavar="PATH", help=f"a checkout of {name}")
    parsed = parser.parse_args(arguments)
    if parsed.rounds is not None and parsed.rounds < 1:
        parser.error(f"--rounds: expected at least 1, got {parsed.rounds}")
    cores = os.sched_getaffinity(0)
    if parsed.core is not None and parsed.core not in cores:
        parser.error(f"--core: expected one of {sorted(cores)}, got {parsed.core}")
    return parsed


def main(arguments: list[str] | None = None) -> int:
    parsed = parse(arguments)
    console = Console()
    if not console.is_terminal:  # a file has no width of its own
        console.width = 160
    out = pathlib.Path(parsed.out).expanduser()
    out.mkdir(parents=True, exist_ok=True)
    names = list(COMMANDS) if parsed.command == "all" else [parsed.command]
    results = {}
    with (
        tempfile.TemporaryDirectory() as work,
        console.status("benchmarks") as status,
    ):
        work = pathlib.Path(work)
        chosen = Settings(
            out=out,
            work=work,
            text=write_text(work / "text.bin"),
            core=max(os.sched_getaffinity(0)) if parsed.core is None else parsed.core,
            rounds=parsed.rounds or (3 if parsed.quick else 7),
            quick=parsed.quick,
            seed=parsed.seed,
            points=tuple(parsed.points),
            peers=None if parsed.peers is None else tuple(parsed.peers),
            checkouts={k: getattr(parsed, k) for k in CHECKOUTS if getattr(parsed, k)},
            progress=status.update,
        )
        for name in names:
            results[name] = COMMANDS[name](chosen)
            write(name, [results[name]], chosen)
            for table in results[name].tables:
                console.print(table.rich())
    outcomes = [o for r in results.values() for o in r.outcomes]
    if parsed.command == "all":
        write("all", list(results.values()), chosen)
    if outcomes:
        console.print(targets_table(outcomes).rich())
    console.print(f"written to {out}", highlight=False)
    return 0


def write(name: str, results: list[Result], chosen: Settings) -> None:
    """NAME.md, ready for a page, and NAME.json with every sample."""
    tables = [t for r in results for t in r.tables]
    outcomes = list({o.id: o for r in results for o in r.outcomes}.values())
    if outcomes:
        tables = [*tables, targets_table(outcomes)]
    computer = settings.machine()
    head = (
        f"{computer['processor']}, {computer['cores']} cores, {computer['system']}.\n"
    )
    text = "\n".join([head, *(t.markdown() for t in tables)])
    (chosen.out / f"{name}.md").write_text(text, encoding="utf-8")
    node = {
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": computer,
        "rounds": chosen.rounds,
        "quick": chosen.quick,
        "seed": chosen.seed,
        "load_average": os.getloadavg(),
        "tables": [
            {"title": t.title, "columns": list(t.columns), "rows": list(t.rows)}
            for t in tables
        ],
        "targets": [{**vars(o), "passed": o.passed} for o in outcomes],
        "raw": [r.raw for r in results],
    }
    (chosen.out / f"{name}.json").write_text(
        json.dumps(node, indent=1), encoding="utf-8"
    )


if __name__ == "__main__":
    sys.exit(main())
