"""What tests of sharding do in a process with eight devices: a library, no tests.

python -m tests.experiments.sharded FUNCTION FOLDER
"""

import contextlib
import json
import os
import pathlib
import re
import subprocess
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np

from experiments import api
from experiments.checkpoints import Checkpoints, digest
from experiments.environment import set_up
from experiments.execute import execute
from experiments.group import plan
from experiments.members import stack_inputs
from tests.launching import ROOT

COLLECTIVES = r"\b(all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)"
SMALL = (
    "model=tiny",
    "data=markov",
    "batch_size=8",
    "seq_len=16",
    "steps=40",
    "schedule=constant",
    "task.eval_every=20",
    "task.eval_batches=1",
)


def begun(
    function: str, folder: pathlib.Path, n_devices: int = 8, **env: str
) -> subprocess.Popen:
    """A function of this file in a process of its own, with so many devices."""
    # Devices wait for each other; a busy machine is no reason to give up on them. Fast
    # code is none of what is tested, and slow to make.
    flags = (
        f"--xla_force_host_platform_device_count={n_devices} "
        "--xla_cpu_collective_call_terminate_timeout_seconds=600 "
        "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    )
    return subprocess.Popen(
        [sys.executable, "-m", "tests.experiments.sharded", function, str(folder)],
        cwd=ROOT,
        env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def returned(process: subprocess.Popen, timeout: float = 900) -> dict:
    """What the function returned."""
    try:
        out, err = process.communicate(timeout=timeout)
    finally:
        process.kill()
    assert process.returncode == 0, err
    return json.loads(out.splitlines()[-1])


def trained(*overrides: str, n: int) -> list[dict]:
    """What n steps make of each run: the rows of the steps, and the parameters."""
    (group,) = plan(api.compose([*SMALL, *overrides]))
    programs, results = group.programs, []
    for batch in programs.layout.batches(group.members):
        inputs = stack_inputs(batch, programs.program.dtype)
        state = jax.block_until_ready(programs.call("init", *inputs))
        arguments = (*inputs, jnp.int32(n), programs.data)
        state, rows = programs.call("probed_steps", state, *arguments)
        rows = {name: x[:, :n] for name, x in jax.device_get(rows).items()}
        params = jax.device_get(state.params)
        results += [
            {
                "rows": {name: x[i] for name, x in rows.items()},
                "params": {path: x[i] for path, x in params.items()},
            }
            for i in range(len(batch))
        ]
    return results


def differences(
    meshes: tuple[str, ...], *overrides: str, n: int, what: str
) -> dict[str, float]:
    """Mesh -> the largest relative difference to one device, of all numbers of all runs.

    Args:
        meshes: values of runtime.mesh, with other overrides behind it.
        what: `gradients` (loss and gradient norms) or `params` (absolute below 1).
    """
    alone = trained(*overrides, n=n)
    found = {}
    for mesh in meshes:
        name, *more = mesh.split(" ")
        runs = trained(*overrides, f"runtime.mesh={name}", *more, n=n)
        found[mesh] = max(
            _difference(run, other, what)
            for run, other in zip(runs, alone, strict=True)
        )
    return found


def _difference(run: dict, other: dict, what: str) -> float:
    kind, floor = ("rows", 1e-30) if what == "gradients" else ("params", 1.0)
    worst = 0.0
    for name, y in other[kind].items():
        if what == "gradients" and name != "loss" and "grad_norm" not in name:
            continue
        x = run[kind][name]
        assert x.dtype == y.dtype, name
        assert np.isfinite(y).all(), name
        worst = max(worst, float(np.max(np.abs(x - y) / np.maximum(np.abs(y), floor))))
    return worst


def first_gradients() -> dict:
    """Of a mesh of all kinds, and how many devices the batch of a step is on."""
    mesh = "{members:2,data:2,fsdp:2}"
    (difference,) = differences((mesh,), "seed=0,1", n=1, what="gradients").values()
    (group,) = plan(api.compose([*SMALL, "seed=0,1", f"runtime.mesh={mesh}"]))
    compiled = group.programs.compile("probed_steps", 2)
    return {
        "difference": difference,
        "devices": compiled.input_shardings[0][1].num_devices,
        "sent": sorted(set(re.findall(COLLECTIVES, compiled.as_text()))),
    }


def first_gradients_of_all() -> dict:
    return differences(
        (
            "{members:8}",
            "{members:8} runtime.layout=vmap",
            "{members:8} runtime.layout=threads",
            "{data:8}",
            "{data:2,fsdp:4} accumulate=2",
            "{fsdp:4,tensor:2}",
            "{members:4,tensor:2} runtime.layout=vmap",
            "{members:2,data:2,fsdp:2} runtime.layout=vmap",
        ),
        "seed=0,1,2,3,4,5,6,7", "batch_size=16", n=1, what="gradients",
    )  # fmt: skip


def twenty_steps() -> dict:
    """Each kind of mesh, a mixture, all that cut one run, and Muon in parts."""
    wide, seeds = "model.dtype=float64", ",".join(map(str, range(8)))
    found = differences(("{members:8}",), wide, f"seed={seeds}", n=20, what="params")
    cut = ("{data:8}", "{fsdp:8}", "{members:2,data:2,fsdp:2}")
    cut += ("{data:2,fsdp:2,tensor:2}",)
    found |= differences(cut, wide, "seed=0,1", n=20, what="params")
    muon = ("optimizer=muon", "accumulate=2", wide, "seed=0,1")
    found |= differences(("{members:2,fsdp:4}",), *muon, n=20, what="params")
    return found


def sweep_of_64() -> dict:
    """FLOPs of a step by device and collectives, with and without a mesh."""
    seeds = "seed=" + ",".join(map(str, range(64)))
    found = {}
    for mesh in ("{members:1}", "{members:8}"):
        (group,) = plan(
            api.compose([*SMALL, seeds, f"runtime.mesh={mesh}", "runtime.layout=vmap"])
        )
        (batch,) = group.programs.layout.batches(group.members)
        compiled = group.programs.compile("train_steps", len(batch))
        found[mesh] = {
            "flops": compiled.cost_analysis()["flops"],
            "collectives": re.findall(COLLECTIVES, compiled.as_text()),
        }
    return found


def memory_under_fsdp() -> dict:
    """State bytes and FLOPs of each device, and what is sent, with how many rows."""
    found = {}
    for mesh in ("{members:1}", "{fsdp:8}", "{members:2,fsdp:4}"):
        (group,) = plan(
            api.compose(
                [
                    *SMALL, "seed=0,1", f"runtime.mesh={mesh}", "runtime.layout=map",
                    "model.d_model=128", "model.d_ff=512", "data.vocab_size=512",
                    "batch_size=24",
                ]
            )
        )  # fmt: skip
        compiled = group.programs.compile("train_steps", 2)
        plan_ = compiled.memory_analysis()
        data = sum(x.nbytes for x in group.programs.program.dataset.arrays.values())
        found[mesh] = {
            "flops": compiled.cost_analysis()["flops"],
            "state": plan_.argument_size_in_bytes - data,
            "sent": [
                (name, re.findall(r"\[(\d+)", shapes))
                for shapes, name in re.findall(
                    rf"= (.*?) {COLLECTIVES}(?:-start)?\(", compiled.as_text()
                )
            ],
        }
    return found


class StopAfter(threading.Event):
    """Is set from the n-th look on."""

    def __init__(self, n: int):
        super().__init__()
        self.left = n

    def is_set(self) -> bool:
        self.left -= 1
        return self.left < 0


def executed(*overrides: str, stop: threading.Event | None = None) -> list:
    groups = plan(api.compose([*SMALL, "model.dtype=float64", *overrides]))
    execute(groups, stop or threading.Event())
    return [member for group in groups for member in group.members]


def resumed_on_another_mesh() -> dict:
    """A run cut on one mesh and continued on another and a third, and one alone."""
    here = ("runtime.output_dir=cut", "seed=3", "runtime.checkpoint.every=10")
    for mesh, stop in (  # looked at before a run and behind every tenth step
        ("{data:2,fsdp:4}", StopAfter(3)),
        ("{fsdp:2,tensor:2,data:2}", StopAfter(2)),
        ("{members:1}", None),
    ):
        (member,) = executed(*here, f"runtime.mesh={mesh}", stop=stop)
    (alone,) = executed("runtime.output_dir=alone", "seed=3")
    assert member.directory.path.name == alone.directory.path.name
    return {
        "attempts": member.directory.status().attempt,
        "note": member.note,  # of the last
        "losses": [
            [
                row[name]
                for row in m.directory.rows("metrics.jsonl")
                for name in ("loss", "val_loss")
                if name in row
            ]
            for m in (member, alone)
        ],
    }


UNTRAINED = ("depth", "propagate", "update_size")


def untrained() -> dict:
    """What tasks that take no step measure, on two devices against one."""
    found = {}
    for task in UNTRAINED:
        runs = ("seed=0,1", *(["model.n_layers=1,2"] if task == "depth" else []))
        alone = _probed(task, "alone", *runs)
        for mesh in ("{members:2}", "{fsdp:2}"):
            rows = _probed(task, mesh.strip("{}"), *runs, f"runtime.mesh={mesh}")
            found[f"{task} {mesh}"] = {
                "numbers": len(alone),
                "alike": rows.keys() == alone.keys(),
                "difference": max(
                    abs(rows[at] - x) / max(abs(x), 1.0) for at, x in alone.items()
                ),
            }
    return found


def _probed(task: str, folder: str, *overrides: str) -> dict[str, float]:
    """All numbers of the probe rows of the runs, by place."""
    numbers = {}
    overrides = [o for o in SMALL if not o.startswith("task.")] + list(overrides)
    groups = plan(
        api.compose(
            [
                *overrides,
                f"task={task}",
                "model.dtype=float64",
                f"runtime.output_dir={folder}",
            ]
        )
    )
    execute(groups, threading.Event())
    for i, member in enumerate(m for group in groups for m in group.members):
        assert member.state == "completed", member.error
        for row in member.directory.rows("probes.jsonl"):
            for k, x in enumerate(row["values"]):
                numbers[f"{i} {row['quantity']} {k}"] = x
    return numbers


SHARED = ("runtime.mesh={members:2,data:2}", "seed=0,1", "runtime.output_dir=shared")


def one_of_two_processes() -> dict:
    """Trains together with another process that runs the same."""
    i, port = int(os.environ["PROCESS"]), os.environ["PORT"]
    members = executed(
        *SHARED,
        f"runtime.distributed={{coordinator:'127.0.0.1:{port}',num_processes:2,"
        f"process_id:{i}}}",
    )
    return {
        "states": [m.state for m in members],
        "errors": [m.error for m in members],
        "writes": type(members[0].directory).__name__,
        "devices": [jax.device_count(), jax.local_device_count()],
    }


def read_by_one_process() -> dict:
    """What the two left, against the same runs made here."""
    alone = executed("seed=0,1", "runtime.output_dir=alone")
    groups = plan(api.compose([*SMALL, "model.dtype=float64", *SHARED[1:]]))
    found = {"digests": [], "difference": 0.0, "rows": []}
    for member, other in zip(groups[0].members, alone, strict=True):
        (like,) = groups[0].programs.abstract(None, ["state"])
        states = []
        for one in (member, other):
            folder = one.directory.path / "checkpoints"
            with jax.enable_x64(True):
                read, problems = Checkpoints(folder, keep=1).restore(like)
            assert not problems, problems
            step, state = read
            assert step == 40
            states.append(state.params)
        status = member.directory.status()
        found["digests"].append(status.params_digest == digest(states[0]))
        run, truth = ({"params": jax.device_get(s)} for s in states)
        worst = _difference(run, truth, "params")
        found["difference"] = max(found["difference"], worst)
        found["rows"].append(
            [len(m.directory.rows("metrics.jsonl")) for m in (member, other)]
        )
        env = json.loads((member.directory.path / "env.json").read_text())
        found["env"] = {k: env[k] for k in ("mesh", "n_devices", "n_processes")}
    return found


if __name__ == "__main__":
    set_up("auto")
    os.chdir(sys.argv[2])
    with contextlib.redirect_stdout(sys.stderr):
        result = globals()[sys.argv[1]]()
    print(json.dumps(result))
