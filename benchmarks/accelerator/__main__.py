"""python -m benchmarks.accelerator OUT: see `benchmarks.accelerator`."""

import argparse
import importlib
import json
import pathlib
import subprocess
import sys
import time

from benchmarks.coordinator import ROOT

# In the order of what is wanted most, should the time end.
PARTS = ("step", "streams", "sweep", "norms", "xiong")
# Exit status: nothing is left, or the same command continues.
FINISHED, CONTINUE = 0, 3


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accelerator")
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--minutes", type=float, default=8.0, help="of this call")
    parser.add_argument("--tiny", action="store_true", help="small, to try it on a CPU")
    parser.add_argument(
        "--parts", type=lambda text: text.split(","), default=list(PARTS)
    )
    parser.add_argument("--only", help=argparse.SUPPRESS)  # one part, in this process
    parsed = parser.parse_args(arguments)
    for part in parsed.parts:
        if part not in PARTS:
            parser.error(f"--parts: no part {part!r}, expected some of {list(PARTS)}")
    if not parsed.minutes > 0:
        parser.error(f"--minutes: must be positive, got {parsed.minutes:g}")
    return parsed


def main(arguments: list[str] | None = None) -> int:
    parsed = parse(arguments)
    parsed.out.mkdir(parents=True, exist_ok=True)
    if parsed.only:
        write(parsed.out / f"{parsed.only}.json", measured(parsed.only, parsed.tiny))
        return FINISHED
    end = time.monotonic() + 60 * parsed.minutes
    failed = []
    for part in parsed.parts:
        path = parsed.out / f"{part}.json"
        if path.exists():
            print(f"{part}: there already")
            continue
        left = end - time.monotonic()
        if left <= 0:
            break
        command = [sys.executable, "-m", "benchmarks.accelerator", str(parsed.out)]
        command += ["--only", part, *(["--tiny"] if parsed.tiny else [])]
        print(f"{part}: {left:.0f} s left", flush=True)
        try:
            done = subprocess.run(command, cwd=ROOT, timeout=left)
        except subprocess.TimeoutExpired:
            print(f"{part}: cut")
            break
        if done.returncode:
            failed.append(part)
            print(f"{part}: failed with exit status {done.returncode}")
    left_over = [p for p in parsed.parts if not (parsed.out / f"{p}.json").exists()]
    if failed:
        print(f"failed: {', '.join(failed)}")
        return 1
    if left_over:
        print(f"to be continued with the same command: {', '.join(left_over)}")
        return CONTINUE
    return FINISHED


def measured(part: str, is_tiny: bool) -> dict[str, object]:
    """One part in this process, with what it was measured on."""
    from benchmarks.accelerator.timing import device

    start = time.perf_counter()
    found = importlib.import_module(f"benchmarks.accelerator.{part}").measure(is_tiny)
    took = time.perf_counter() - start
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    facts = {"part": part, "tiny": is_tiny, "when": when, "took": took}
    return {**facts, "device": device(), **found}


def write(path: pathlib.Path, node: dict[str, object]) -> None:
    """Whole or not at all: a part that is there is not run again."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(json.dumps(node, indent=1) + "\n", encoding="utf-8")
    temporary.replace(path)


if __name__ == "__main__":
    sys.exit(main())
