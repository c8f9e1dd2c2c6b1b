"""Runs in one process with a compilation each: what a loop over runs usually does.

    python -m benchmarks.one_by_one JSON         JSON: a list of lists of overrides

Prints seconds of wall time per run as JSON in its last line.
"""

import json
import sys
import time

from experiments import api, group


def main(runs: list[list[str]]) -> list[float]:
    seconds = []
    for overrides in runs:
        started = time.perf_counter()
        api.run(api.compose(overrides))
        seconds.append(time.perf_counter() - started)
        group.executables.cache_clear()  # the next run builds and compiles its own
    return seconds


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
