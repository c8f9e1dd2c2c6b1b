"""Running launch.py as a user does, and reading what it leaves."""

import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SMALL = (
    "model=tiny",
    "data=markov",
    "batch_size=4",
    "seq_len=16",
    "log_every=10",
    "task.eval_every=250",
    "task.eval_batches=2",
)
TIMES = ("seconds", "tokens_per_second")


def start(*arguments: str, cwd, **env: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, str(ROOT / "launch.py"), *arguments],
        cwd=cwd,
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def launch(
    *arguments: str, cwd, timeout=300, **env: str
) -> subprocess.CompletedProcess:
    process = start(*arguments, cwd=cwd, **env)
    out, err = process.communicate(timeout=timeout)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def runs_below(folder: pathlib.Path) -> dict[str, pathlib.Path]:
    """Run folders by the hash of their identity."""
    return {p.parent.name[-12:]: p.parent for p in folder.glob("*/config.json")}


def status(run: pathlib.Path) -> dict:
    return json.loads((run / "status.json").read_text())


def rows(run: pathlib.Path, file: str = "metrics.jsonl") -> list[dict]:
    """Rows without the columns that are wall time."""
    lines = (run / file).read_text().splitlines()
    return [
        {k: v for k, v in json.loads(line).items() if k not in TIMES} for line in lines
    ]


def assert_same_results(folder: pathlib.Path, other: pathlib.Path) -> None:
    """Same runs, same rows to the last bit, same final parameters."""
    first, second = runs_below(folder), runs_below(other)
    assert first.keys() == second.keys()
    for identity, run in first.items():
        twin = second[identity]
        assert rows(run) == rows(twin), run.name
        steps = [row["step"] for row in rows(run)]
        assert steps == sorted(set(steps)), "a step appears once"
        assert status(run)["state"] == status(twin)["state"]
        digest = status(run)["params_digest"]
        assert digest == status(twin)["params_digest"]
