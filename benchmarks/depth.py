"""What depth costs: compilation and step at 4 to 1000 layers, and whole experiments."""

import statistics

from benchmarks import processes
from benchmarks.coordinator import (
    Peer,
    Ratio,
    Spec,
    Work,
    clock,
    rounds,
    worker_command,
)
from benchmarks.points import Point
from benchmarks.settings import Result, Settings
from benchmarks.tables import Table, mebibytes, milliseconds, significant
from benchmarks.targets import Outcome

LAYERS = (4, 24, 96, 384, 1000)
SHALLOW, DEEP = 4, 384  # what target P8 compares
POINT = Point("deep", d_model=64, n_layers=4, n_heads=2, seq_len=64, batch_size=4)

# The gradient of untrained Post-LN models, two sequences of 32, 20 seeds (target P9).
GRADIENT = (
    "-m",
    "task=depth",
    "model=small",
    "norm=layernorm",
    "placement=post",
    "model.d_model=64",
    "model.n_heads=2",
    "model.d_ff=256",
    "batch_size=2",
    "seq_len=32",
    "model.n_layers=6,12,24,48,96,192,384",
    "seed=range(0,20)",
)


def measure(settings: Settings) -> Result:
    steps, compilations, info = measure_layers(settings)
    ratio = Ratio.of(clock(compilations[str(DEEP)]), clock(compilations[str(SHALLOW)]))
    gradient, whole = measure_experiments(settings)
    return Result(
        [layers_table(steps, compilations, info), whole],
        [
            Outcome("P8", ratio.median, str(ratio)),
            Outcome(
                "P9", gradient.cpu, significant(gradient.cpu), "no cache, one core"
            ),
        ],
        {"steps": steps, "compilations": compilations, "info": info},
    )


def measure_layers(settings: Settings):
    """Samples of steps and of compilations, by number of layers as text."""
    layers = [n for n in LAYERS if not (settings.quick and n not in (4, 96, 384))]
    peers, info = [], {}
    try:
        for n in layers:
            settings.progress(f"depth: building {n} layers")
            # The first `compile` also warms what all compilations share.
            spec = Spec(str(n), "ours", (("warm_up", ["compile", "run"]),))
            point = POINT.replace(n_layers=n)
            command = worker_command(spec, point, settings.text, settings.core)
            peers.append(Peer(spec.name, command))
            peers[-1].wait_ready()
            info[spec.name] = peers[-1].info

        def say(text):
            settings.progress(f"depth: {text}")

        # About half a second of steps each.
        steps = rounds(
            [Work(p, max(1, 200 // n)) for p, n in zip(peers, layers, strict=True)],
            settings.rounds,
            seed=settings.seed,
            progress=say,
        )
        compilations = rounds(
            [Work(p, 1, "compile") for p in peers],
            max(3, settings.rounds // 2),
            seed=settings.seed,
            progress=say,
        )
    finally:
        for peer in peers:
            peer.close()
    return steps, compilations, info


def layers_table(steps, compilations, info) -> Table:
    rows = []
    shallow = str(SHALLOW)
    for n, of_peer in steps.items():
        step = statistics.median(clock(of_peer))
        rows.append(
            [
                n,
                significant(statistics.median(clock(compilations[n]))),
                str(Ratio.of(clock(compilations[n]), clock(compilations[shallow]))),
                milliseconds(step),
                milliseconds(step / int(n)),
                mebibytes(info[n]["state_bytes"]),
                mebibytes(max(s["peak_bytes"] for s in of_peer)),
            ]
        )
    columns = ["layers", "compile CPU s", f"compile / {shallow} layers", "step CPU ms"]
    columns += ["ms / layer", "state MiB", "peak MiB"]
    notes = [
        "Width 64, 2 heads, batch 4 x 64, AdamW, one core, medians over rounds. Compile: "
        "tracing, lowering and compiling `train_steps`, nothing cached. Up to 24 layers "
        "the backward pass keeps matrix products, beyond it recomputes all."
    ]
    return Table("Depth", columns, rows, notes)


def measure_experiments(settings: Settings):
    """The run behind P9, and a table of it and of `experiment=xiong`, cold and warm."""

    def run(name: str, cache: str, *overrides: str, core=None) -> processes.Finished:
        settings.progress(f"depth: {name}")
        folder = settings.work / name
        command = processes.launch(
            *overrides,
            f"runtime.output_dir={folder}",
            f"runtime.compilation_cache={cache}",
        )
        return processes.run(command, core=core)

    data = ("data=bytes", f"data.path={settings.text}")
    gradient = run("gradient", "null", *GRADIENT, *data, core=settings.core)
    cache = str(settings.work / "xiong_cache")
    cold = run("xiong_cold", cache, "experiment=xiong")
    warm = run("xiong_warm", cache, "experiment=xiong")
    rows = [
        [name, significant(f.wall), significant(f.cpu), mebibytes(f.peak_bytes)]
        for name, f in (
            ("gradient against depth (140 runs), no cache, one core", gradient),
            ("experiment=xiong with its report, cold cache", cold),
            ("experiment=xiong with its report, warm cache", warm),
        )
    ]
    columns = ["whole command", "wall s", "CPU s", "peak MiB"]
    notes = ["All cores but for the first. Children are included in CPU and peak."]
    return gradient, Table("Depth experiments", columns, rows, notes)
