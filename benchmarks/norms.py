"""Every normalizer of conf/norm against the same formula by hand, and against RMSNorm.

    python -m benchmarks.norms [--tokens 32768] [--width 1024] [--choices dyt,derf]

Forward and backward together: y and the gradients in x and in every parameter, for
float32 rows [tokens, width]. All programs are compiled first and kept; in a round each
runs once, in random order, and ratios are taken within the round. One process on one
core. Writes norms.md and norms.json.
"""

import argparse
import functools
import json
import os
import pathlib
import random
import sys
import time

from rich.console import Console

from benchmarks.coordinator import ROOT, Ratio
from benchmarks.settings import machine
from benchmarks.tables import Table, milliseconds
from benchmarks.worker import pin, timed

CONF = ROOT / "conf" / "norm"


def main(arguments: list[str] | None = None) -> int:
    parsed = parse(arguments)
    pin(parsed.core)  # before jax sizes its thread pool
    console = Console()
    if not console.is_terminal:
        console.width = 160
    with console.status("norms") as status:
        programs, left_out = build(parsed, status.update)
        samples = rounds(programs, parsed.rounds, parsed.seed, status.update)
    table = table_of(samples, left_out, parsed)
    console.print(table.rich())
    write(table, samples, left_out, parsed)
    console.print(f"written to {parsed.out}", highlight=False)
    return 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.norms")
    parser.add_argument("--tokens", type=int, default=32 * 1024)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seed", type=int, default=0, help="of the order of turns")
    parser.add_argument("--core", type=int, help="to pin to; default: the last one")
    parser.add_argument("--out", type=pathlib.Path, default="outputs/benchmarks")
    parser.add_argument(
        "--choices",
        type=lambda text: text.split(","),
        default=sorted(path.stem for path in CONF.glob("*.yaml")),
        help="of conf/norm (default: all)",
    )
    parsed = parser.parse_args(arguments)
    for choice in parsed.choices:
        if not (CONF / f"{choice}.yaml").is_file():
            parser.error(f"--choices: conf/norm has no {choice}.yaml")
    if parsed.rounds < 1:
        parser.error(f"--rounds: expected at least 1, got {parsed.rounds}")
    cores = os.sched_getaffinity(0)
    parsed.core = max(cores) if parsed.core is None else parsed.core
    if parsed.core not in cores:
        parser.error(f"--core: expected one of {sorted(cores)}, got {parsed.core}")
    if "rmsnorm" not in parsed.choices:
        parsed.choices = ["rmsnorm", *parsed.choices]
    return parsed


def build(parsed, progress):
    """Label -> function that runs once; and the choices without a form by hand."""
    import jax

    shape = (parsed.tokens, parsed.width)
    x, dy = (jax.random.normal(jax.random.key(i), shape) for i in range(2))
    programs, left_out = {}, []
    for choice in parsed.choices:
        progress(f"norms: compiling {choice}")
        ours, by_hand, params, state = both_forms(choice, parsed.width)
        for side, form in {"ours": ours, "hand": by_hand}.items():
            if form is None:
                left_out.append(choice)
                continue
            run = jax.jit(forward_and_backward(form)).lower(params, state, x, dy)
            run = functools.partial(run.compile(), params, state, x, dy)
            programs[f"{choice}/{side}"] = run
            jax.block_until_ready(run())
    return programs, left_out


def both_forms(choice: str, width: int):
    """f(params, state, x) -> (y, new state) twice, and the arrays, by name.

    The second is None where nobody wrote the formula by hand.
    """
    import yaml
    from flax import nnx
    from hydra.utils import instantiate

    from benchmarks import norms_by_hand
    from blocks.parameters import layout_of

    node = yaml.safe_load((CONF / f"{choice}.yaml").read_text())
    make = functools.partial(instantiate(node), width)
    layout = layout_of(lambda: make(rngs=nnx.Rngs(0)))
    params, state = layout.split(make(rngs=nnx.Rngs(0)))

    def ours(params, state, x):
        norm = layout.merge(params, state)
        y = norm(x)
        return y, layout.split(norm)[1]

    file = node["_target_"].split(".")[-2]
    formula = getattr(norms_by_hand, choice, None) or getattr(norms_by_hand, file, None)
    if formula is None:
        return ours, None, params, state
    keywords = {k: v for k, v in node.items() if not k.startswith("_")}

    def by_hand(params, state, x):
        y = formula({**params, **state}, x, **keywords)
        return y if isinstance(y, tuple) else (y, {})

    return ours, by_hand, params, state


def forward_and_backward(form):
    """run(params, state, x, dy) -> y, new state, (d params, dx)"""
    import jax

    def run(params, state, x, dy):
        y, pull, new = jax.vjp(lambda p, x: form(p, state, x), params, x, has_aux=True)
        return y, new, pull(dy)

    return run


def rounds(programs, n_rounds: int, seed: int, progress):
    """Label -> CPU seconds per round."""
    import jax

    def once(run, _):
        jax.block_until_ready(run())
        return {}

    shuffled = random.Random(seed)
    samples = {label: [] for label in programs}
    for i in range(n_rounds):
        for label in shuffled.sample(sorted(programs), len(programs)):
            progress(f"norms: round {i + 1} of {n_rounds}: {label}")
            sample = timed(functools.partial(once, programs[label]), 1)
            samples[label].append(sample["cpu"])
    return samples


def table_of(samples, left_out, parsed) -> Table:
    reference = samples["rmsnorm/ours"]
    rows = []
    for choice in parsed.choices:
        ours = samples[f"{choice}/ours"]
        hand = samples.get(f"{choice}/hand")
        rows.append(
            [
                choice,
                milliseconds(sorted(ours)[len(ours) // 2]),
                "-" if hand is None else str(Ratio.of(ours, hand)),
                str(Ratio.of(ours, reference)),
            ]
        )
    notes = [
        f"{parsed.tokens:,} x {parsed.width:,} float32, forward and backward, CPU time "
        f"of one core, medians over {parsed.rounds} rounds (smallest .. largest)."
    ]
    if left_out:
        notes.append(f"Not written by hand: {', '.join(left_out)}.")
    columns = ["norm", "CPU ms", "ours / by hand", "ours / rmsnorm"]
    return Table("Normalizers", columns, rows, notes)


def write(table: Table, samples, left_out, parsed) -> None:
    parsed.out.mkdir(parents=True, exist_ok=True)
    (parsed.out / "norms.md").write_text(table.markdown(), encoding="utf-8")
    node = {
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": machine(),
        "load_average": os.getloadavg(),
        "settings": {**vars(parsed), "out": str(parsed.out)},
        "not_by_hand": left_out,
        "cpu_seconds": samples,
    }
    text = json.dumps(node, indent=1)
    (parsed.out / "norms.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
