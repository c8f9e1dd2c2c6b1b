"""Time and memory against members, depth, width and sequence length, with a figure.

The peers of one axis are alive together and step in turn, as in `single`; each is a
process of its own, so its peak memory is its own.
"""

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
from benchmarks.points import POINTS, Point
from benchmarks.settings import Result, Settings
from benchmarks.tables import Table, mebibytes, milliseconds, significant

BASE = Point("growth", d_model=64, n_layers=4, n_heads=2, seq_len=64, batch_size=4)
AXES = {
    "n_layers": (4, 16, 64, 256),
    "d_model": (32, 64, 128, 256, 512),
    "seq_len": (32, 64, 128, 256, 512, 1024),
}
MEMBERS = (1, 4, 16, 64)
LAYOUTS = ("threads", "map", "vmap")


def measure(settings: Settings) -> Result:
    tables, raw = [], {}
    for axis, values in AXES.items():
        values = values[:3] if settings.quick else values
        points = [BASE.replace(**{axis: v}) for v in values]
        budget = 2e10  # FLOPs of a peer in a round: about half a second
        entries = [
            (str(v), p, {}, max(1, int(budget / 2 / p.flops())))
            for v, p in zip(values, points, strict=True)
        ]
        raw[axis] = measure_axis(axis, entries, settings)
        tables.append(axis_table(axis, raw[axis]))
    members = MEMBERS[:3] if settings.quick else MEMBERS
    for layout in LAYOUTS:
        entries = [
            (str(m), POINTS["tiny"], {"members": m, "layout": layout}, 200 // m)
            for m in members
        ]
        name = f"members, {layout}"
        raw[name] = measure_axis(name, entries, settings)
        tables.append(axis_table(name, raw[name], per_member=True))
    figure = settings.out / "growth.png"
    draw(raw, figure)
    tables[-1] = Table(
        tables[-1].title,
        tables[-1].columns,
        tables[-1].rows,
        [*tables[-1].notes, f"Figure: {figure.name}, beside this table."],
    )
    return Result(tables, raw=raw)


def measure_axis(axis: str, entries, settings: Settings) -> dict:
    """Value as text -> {"cpu": per step, "peak_bytes", "state_bytes", "flops"}."""
    peers = []
    try:
        for label, point, options, _ in entries:
            settings.progress(f"growth: {axis}: building {label}")
            spec = Spec(label, "ours", tuple(options.items()))
            command = worker_command(spec, point, settings.text, settings.core)
            peers.append(Peer(label, command))
            peers[-1].wait_ready()
        samples = rounds(
            [Work(p, e[3]) for p, e in zip(peers, entries, strict=True)],
            settings.rounds,
            seed=settings.seed,
            progress=lambda text: settings.progress(f"growth: {axis}: {text}"),
        )
        return {
            label: {
                "cpu": clock(samples[label]),
                "peak_bytes": max(s["peak_bytes"] for s in samples[label]),
                "state_bytes": peer.info["state_bytes"],
                "flops": point.flops() * options.get("members", 1),
            }
            for peer, (label, point, options, _) in zip(peers, entries, strict=True)
        }
    finally:
        for peer in peers:
            peer.close()


def axis_table(axis: str, measured: dict, *, per_member: bool = False) -> Table:
    first = next(iter(measured.values()))
    rows = []
    for label, m in measured.items():
        share = int(label) if per_member else 1
        cpu = [c / share for c in m["cpu"]]
        rows.append(
            [
                label,
                milliseconds(statistics.median(cpu)),
                str(Ratio.of(cpu, first["cpu"])),
                significant(m["flops"] / first["flops"] / share),
                mebibytes(m["state_bytes"]),
                mebibytes(m["peak_bytes"]),
            ]
        )
    step = "CPU ms / member step" if per_member else "CPU ms / step"
    columns = [axis, step, "time / first", "FLOPs / first", "state MiB", "peak MiB"]
    where = (
        "tiny" if per_member else "width 64, 4 layers, 2 heads, batch 4 x 64 otherwise"
    )
    notes = [f"{where}; one core, medians over rounds (smallest .. largest)."]
    return Table(f"Growth with {axis}", columns, rows, notes)


def draw(raw: dict, path) -> None:
    """Time per step above, peak memory below, a column per axis; both logarithmic."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    columns = ["members", *AXES]
    figure, axes = plt.subplots(
        2, len(columns), figsize=(3.4 * len(columns), 6), layout="constrained"
    )
    for column, name in enumerate(columns):
        curves = {k: v for k, v in raw.items() if k.split(",")[0] == name}
        for key, measured in curves.items():
            x = [int(label) for label in measured]
            share = x if name == "members" else [1] * len(x)
            times = [
                [1e3 * c / s for c in m["cpu"]]
                for m, s in zip(measured.values(), share, strict=True)
            ]
            middle = [statistics.median(t) for t in times]
            label = key.removeprefix("members, ") if "," in key else "process"
            (line,) = axes[0, column].plot(x, middle, marker="o", label=label)
            axes[0, column].fill_between(
                x, [min(t) for t in times], [max(t) for t in times],
                color=line.get_color(), alpha=0.2,
            )  # fmt: skip
            peak = [m["peak_bytes"] / 2**20 for m in measured.values()]
            axes[1, column].plot(x, peak, marker="o", label=label)
        state = next(iter(curves.values()))
        axes[1, column].plot(
            [int(v) for v in state],
            [m["state_bytes"] / 2**20 for m in state.values()],
            color="grey", linestyle=":", label="states",
        )  # fmt: skip
        is_flat = name == "members"  # time per member: differences of percents
        for axis in axes[:, column]:
            axis.set_xscale("log", base=2)
            axis.set_yscale("log")
            axis.set_xlabel(name)
        if is_flat:
            axes[0, column].set_yscale("linear")
            axes[0, column].set_ylim(bottom=0)
        axes[1, column].legend(fontsize="small")
        if len(curves) > 1:
            axes[0, column].legend(fontsize="small")
    axes[0, 0].set_ylabel("CPU ms per step (per member)")
    axes[1, 0].set_ylabel("peak MiB of the process")
    figure.savefig(path, dpi=130)
    plt.close(figure)
