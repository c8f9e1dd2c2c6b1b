"""What several normalizers in one program cost: `norm=switch` against one of them."""

import statistics

from benchmarks.coordinator import (
    Peer,
    Ratio,
    Spec,
    Work,
    clock,
    rounds,
    worker_command,
)
from benchmarks.points import POINTS
from benchmarks.settings import Result, Settings
from benchmarks.tables import Table, milliseconds, significant
from benchmarks.targets import Outcome

ONE = "rmsnorm"
NORMS = {
    ONE: ("norm=rmsnorm",),
    "switch of five, the first runs": ("norm=switch", "model.norm.which=0"),
    "switch of five, the last runs": ("norm=switch", "model.norm.which=4"),
}
STEPS = 200


def measure(settings: Settings) -> Result:
    peers = []
    try:
        for name, extra in NORMS.items():
            settings.progress(f"programs: building {name}")
            options = (("extra", list(extra)), ("warm_up", ["compile", "run"]))
            spec = Spec(name, "ours", options)
            point = POINTS["tiny"]
            command = worker_command(spec, point, settings.text, settings.core)
            peers.append(Peer(name, command))
            peers[-1].wait_ready()

        def sample(n, command, n_rounds):
            return rounds(
                [Work(peer, n, command) for peer in peers],
                n_rounds,
                seed=settings.seed,
                progress=lambda text: settings.progress(f"programs: {text}"),
            )

        steps = sample(STEPS, "run", settings.rounds)
        compilations = sample(1, "compile", max(3, settings.rounds // 2))
    finally:
        for peer in peers:
            peer.close()
    ratios = {
        name: (
            Ratio.of(clock(compilations[name]), clock(compilations[ONE])),
            Ratio.of(clock(steps[name]), clock(steps[ONE])),
        )
        for name in NORMS
    }
    rows = [
        [
            name,
            significant(statistics.median(clock(compilations[name]))),
            str(compiled),
            milliseconds(statistics.median(clock(steps[name]))),
            str(ran),
        ]
        for name, (compiled, ran) in ratios.items()
    ]
    columns = ["norm", "compile CPU s", f"compile / {ONE}", "step CPU ms"]
    columns.append(f"step / {ONE}")
    notes = [
        "tiny, one core, medians over rounds (smallest .. largest). The switch holds "
        "RMSNorm, LayerNorm, DyT, Derf and ScaleNorm; which of them runs is an input."
    ]
    first = list(NORMS)[1]
    compiled, ran = ratios[first]
    return Result(
        [Table("Normalizers in one program", columns, rows, notes)],
        [
            Outcome("P12a", compiled.median, str(compiled)),
            Outcome("P12b", ran.median, str(ran)),
        ],
        {"steps": steps, "compilations": compilations},
    )
