"""One training step against peers, each pinned to the same core, in turn."""

import statistics
from typing import Any

from benchmarks.coordinator import (
    Peer,
    PeerError,
    Ratio,
    Spec,
    Work,
    clock,
    find,
    rounds,
    worker_command,
)
from benchmarks.points import Point
from benchmarks.settings import Result, Settings
from benchmarks.tables import Table, mebibytes, milliseconds, significant
from benchmarks.targets import Outcome, not_measured

OURS = "ours"
# After the others' turns a process begins with cold caches: what is measured over 50
# steps is compared with 50 steps.
LONG, CADENCE = "ours, turns of 50 steps", "ours, probe every 50 steps"
# They differ by a percent or two, which the rounds of all peers do not resolve.
PAIR_ROUNDS = 3
LIMITS = ("matmul: jax", "matmul: numpy")
TORCH = ("torch",)
HF, XT = (*TORCH, "transformers"), (*TORCH, "x_transformers")

PEERS = (
    Spec(OURS, "ours", (("warm_up", ["run", "probed"]),)),
    Spec("ours, a second process", "ours"),
    Spec("ours without RoPE", "ours", (("extra", ["~positions"]),)),
    Spec("bare prototype", "bare"),
    Spec("flax modules, nnx.jit loop", "flax_loop"),
    Spec("transformers GPT-2, eager", "hf_gpt2", needs=HF),
    Spec("transformers GPT-2, compiled", "hf_gpt2", (("compiled", True),), needs=HF),
    Spec("x-transformers, eager", "x_transformers", needs=XT),
    Spec("nanoGPT, eager", "nanogpt", needs=TORCH, checkout="nanogpt"),
    Spec(
        "nanoGPT, compiled",
        "nanogpt",
        (("compiled", True),),
        needs=TORCH,
        checkout="nanogpt",
    ),
    Spec("nanodo, metrics off", "nanodo", checkout="nanodo"),
    Spec(LIMITS[0], "matmul", (("library", "jax"),), steps=10),
    Spec(LIMITS[1], "matmul", (("library", "numpy"),), steps=10),
)

# Further turns of the process of ours, so that what they add is not the luck of another
# process: label -> command and units, None for the point's steps.
TURNS = {
    "ours, probe at every step": ("probed", None),
    LONG: ("run", 50),
    CADENCE: ("cadence", 50),  # one probe in every turn
}


def measure(settings: Settings) -> Result:
    """Every point, with every peer that is here."""
    specs, missing = find(PEERS, settings.checkouts)
    if settings.peers is not None:
        always = (OURS, *LIMITS)
        specs = [
            s
            for s in specs
            if s.name in always or any(p in s.name for p in settings.peers)
        ]
    result = Result([], raw={"missing": missing, "points": {}})
    ratios: dict[tuple[str, str], Ratio] = {}
    for point in settings.points:
        raw = measure_point(point, specs, settings)
        result.raw["points"][point.name] = raw
        result.tables.append(point_table(point, raw, missing))
        ours = clock(raw["samples"][OURS])
        for name, samples in raw["samples"].items():
            ratios[point.name, name] = Ratio.of(clock(samples), ours)
        if raw["pair"]:
            ratios[point.name, CADENCE] = Ratio.of(
                clock(raw["pair"][CADENCE]), clock(raw["pair"][LONG])
            )
    result.outcomes = outcomes(ratios)
    return result


def measure_point(
    point: Point, specs: list[Spec], settings: Settings
) -> dict[str, Any]:
    """{"info", "samples", "failed"} by peer; a peer that cannot be built is left out.

    "pair": turns with one probe and turns without, alone and more often.
    """
    works, failed, info = [], {}, {}
    peers = []
    try:
        for spec in specs:
            settings.progress(f"{point.name}: building {spec.name}")
            peer = Peer(
                spec.name, worker_command(spec, point, settings.text, settings.core)
            )
            peers.append(peer)
            try:
                peer.wait_ready()  # one at a time: they share the core
            except PeerError as error:
                if spec.name == OURS:
                    raise
                failed[spec.name] = str(error)
                continue
            info[spec.name] = peer.info
            works.append(Work(peer, spec.steps or point.steps))
            if spec.name != OURS:
                continue
            for label, (command, n) in TURNS.items():
                if (n or 0) <= 20 * point.steps:  # else it would take minutes
                    works.append(Work(peer, n or point.steps, command, label))
                    info[label] = peer.info
        samples = rounds(
            works,
            settings.rounds,
            seed=settings.seed,
            progress=lambda text: settings.progress(f"{point.name}: {text}"),
        )
        pair = [work for work in works if work.label in (LONG, CADENCE)]
        more = rounds(
            pair,
            PAIR_ROUNDS * settings.rounds if pair else 0,
            seed=settings.seed + 1,
            progress=lambda text: settings.progress(f"{point.name}, pair: {text}"),
        )
    finally:
        for peer in peers:
            peer.close()
    return {"info": info, "samples": samples, "pair": more, "failed": failed}


def point_table(point: Point, raw: dict[str, Any], missing: dict[str, str]) -> Table:
    """Median milliseconds, the ratio to ours, and what part of the machine it uses."""
    samples, info = raw["samples"], raw["info"]
    rates = {
        name: info[name]["flops"] / statistics.median(clock(samples[name]))
        for name in LIMITS
    }
    limit = max(rates.values())
    rows = []
    for name, of_peer in samples.items():
        if name in LIMITS:
            continue
        flops = point.flops(info[name]["matmul_params"])
        seconds = statistics.median(clock(of_peer))
        wall = Ratio.of(clock(of_peer, "wall"), clock(samples[OURS], "wall"))
        rows.append(
            [
                name,
                milliseconds(seconds),
                str(Ratio.of(clock(of_peer), clock(samples[OURS]))),
                significant(wall.median),
                f"{100 * flops / seconds / limit:.0f} %",
                f"{info[name]['n_params']:,}",
                significant(flops / 1e9),
                mebibytes(of_peer[-1]["peak_bytes"]),
            ]
        )
    shown = ", ".join(f"{k} {v / 1e9:.1f}" for k, v in rates.items())
    notes = [
        f"float32, AdamW, batch {point.batch_size} x {point.seq_len}, width "
        f"{point.d_model}, {point.n_layers} layers, {point.n_heads} heads; one core, "
        f"{len(samples[OURS])} rounds of {point.steps} steps; median (smallest .. "
        "largest) over rounds.",
        "GF of a step: B T (6 N + 12 L D T), N the parameters that are multiplied.",
        f"Limit, 1024 x 1024 products in the same rounds, GF/s: {shown}.",
    ]
    notes += [f"Failed: {k}: {v.splitlines()[-1]}" for k, v in raw["failed"].items()]
    notes += [f"Missing: {name}: {why}." for name, why in missing.items()]
    columns = ["", "CPU ms / step", "time / ours", "wall / ours"]
    columns += ["of the limit", "parameters", "GF / step", "peak MiB"]
    return Table(f"Training step, {point.name}", columns, rows, notes)


# Target -> point, peers by preference (the first is the one the target names), and
# whether the ratio is peer / ours or ours / peer. "nanodo as shipped" (its metrics per
# tensor at every step) and "flax gemma" have no worker: a stand-in is what there is.
_AGAINST = {
    "P1": ("base", ("nanodo, metrics off", "flax modules, nnx.jit loop"), True),
    "P2": ("base", ("flax gemma", "flax modules, nnx.jit loop"), True),
    "P3": ("base", ("nanoGPT, eager", "transformers GPT-2, eager"), False),
    "P4a": ("small", ("nanoGPT, eager", "transformers GPT-2, eager"), True),
    "P4b": ("small", ("nanoGPT, compiled", "transformers GPT-2, compiled"), True),
    "P5a": ("tiny", ("nanoGPT, eager", "transformers GPT-2, eager"), True),
    "P5b": ("tiny", ("nanodo as shipped", "flax modules, nnx.jit loop"), True),
    "P5c": ("tiny", ("flax gemma", "flax modules, nnx.jit loop"), True),
    "P6a": ("base", ("bare prototype",), False),
    "P6b": ("tiny", ("bare prototype",), False),
    "P7a": ("base", ("ours, probe at every step",), True),
    "P7b": ("tiny", ("ours, probe at every step",), True),
    "P7c": ("base", (CADENCE,), True),
}


def outcomes(ratios: dict[tuple[str, str], Ratio]) -> list[Outcome]:
    """Targets P1 to P7 from time / ours by (point, peer)."""
    found = []
    for id, (point, peers, peer_on_top) in _AGAINST.items():
        if (point, OURS) not in ratios:
            continue  # the point was not asked for
        here = [p for p in peers if (point, p) in ratios]
        if not here:
            found.append(not_measured(id, f"{peers[0]} at {point} was not there"))
            continue
        ratio = ratios[point, here[0]]
        if not peer_on_top:  # the reciprocal of a median of positive numbers
            ratio = Ratio(1 / ratio.median, 1 / ratio.high, 1 / ratio.low)
        stand_in = "" if here[0] == peers[0] else here[0]
        found.append(Outcome(id, ratio.median, str(ratio), stand_in=stand_in))
    return found
