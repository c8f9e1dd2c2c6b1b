"""The framework itself, through its own compiled functions.

Commands:
    run       n steps of `train_steps`, up to 50 in a call, metrics fetched per call
    probed    n steps one by one, each followed by the full per-layer probe, its rows
              made and serialised
    cadence   n steps with a probe every 50
    compile   n times: trace and compile `train_steps` from nothing

Rows are not written to disk and no checkpoint is saved here; the commands that launch
whole processes (sweep, startup) include that.
"""

import json
import time

import jax
import jax.numpy as jnp

from benchmarks import points
from benchmarks.points import Point
from benchmarks.worker import Built
from experiments import api
from experiments.environment import set_up
from experiments.execution import Executables
from experiments.group import plan
from experiments.members import stack_inputs
from experiments.probes import probe_rows
from experiments.program import CHUNK


def overrides(point: Point, text: str) -> list[str]:
    """The point as overrides of the framework's default config."""
    return [
        "model=small",
        f"model.d_model={point.d_model}",
        f"model.n_layers={point.n_layers}",
        f"model.n_heads={point.n_heads}",
        f"model.d_ff={point.d_ff}",
        "model.tied_head=true",
        "norm=layernorm",
        "placement=pre",
        "ffn=mlp",
        f"batch_size={point.batch_size}",
        f"seq_len={point.seq_len}",
        "data=bytes",
        f"data.path={text}",
        "schedule=constant",
        "optimizer=adamw",
        f"optimizer.learning_rate={points.LEARNING_RATE}",
        f"optimizer.b1={points.B1}",
        f"optimizer.b2={points.B2}",
        f"optimizer.eps={points.EPS}",
        f"optimizer.weight_decay={points.WEIGHT_DECAY}",
        f"optimizer.clip_norm={points.CLIP_NORM}",
        "steps=1000000000",
    ]


def build(
    point: Point,
    text: str,
    *,
    members: int = 1,
    layout: str = "threads",
    extra: tuple[str, ...] = (),
    warm_up: tuple[str, ...] = ("run",),
) -> Built:
    """members: runs that train together; extra: more overrides, after the point's."""
    seeds = f"seed=range(0,{members})"
    extra = (*extra, f"runtime.layout={layout}", "runtime.compilation_cache=null")
    configs = api.compose([*overrides(point, text), *extra, seeds])
    set_up(None)
    (group,) = plan(configs)
    runs = [_Run(group, batch) for batch in group.programs.layout.batches(group.members)]

    def each(method):
        def command(n):
            results = [getattr(run, method)(n) for run in runs]
            return results[-1]

        return command

    program = group.programs.program
    commands = {name: each(name) for name in ("run", "probed", "cadence", "compile")}
    return Built(
        commands,
        {
            "n_params": program.n_params,
            "matmul_params": sum(
                s.size
                for s in program.layout.specs.values()
                if s.role in ("matrix", "head", "embedding")
            ),
            "state_bytes": sum(run.state_bytes for run in runs),
            "versions": {"jax": jax.__version__},
        },
        warm_up,
    )


class _Run:
    """Members that share calls, with their state."""

    def __init__(self, group, members):
        self.programs = group.programs
        self.inputs = stack_inputs(members, self.programs.program.dtype)
        self.state = self.programs.call("init", *self.inputs)
        self.state_bytes = sum(x.nbytes for x in jax.tree.leaves(self.state))
        self.step = 0

    def steps(self, n: int, programs: Executables | None = None) -> dict:
        programs = programs or self.programs
        self.state, metrics = programs.call(
            "train_steps", self.state, *self.inputs, jnp.int32(n), programs.data
        )
        return jax.device_get(metrics)

    def run(self, n: int) -> dict:
        done = 0
        while done < n:
            now = min(CHUNK, n - done)
            loss = self.steps(now)["loss"][0, now - 1]
            done += now
        self.step += n
        return {"loss": float(loss)}

    def probe(self) -> None:
        seeds = self.inputs[0]
        measured = jax.device_get(
            self.programs.call("probe", self.state, seeds, self.programs.data)
        )
        for i in range(seeds.shape[0]):
            for row in probe_rows(self.step, {k: v[i] for k, v in measured.items()}):
                json.dumps(row)

    def probed(self, n: int) -> dict:
        for _ in range(n):
            result = self.run(1)
            self.probe()
        return result

    def cadence(self, n: int) -> dict:
        done = 0
        while done < n:
            # The next multiple of 50, wherever the last request ended.
            now = min(n - done, CHUNK - self.step % CHUNK)
            result = self.run(now)
            done += now
            if self.step % CHUNK == 0:
                self.probe()
        return result

    def compile(self, n: int) -> dict:
        """Seconds per compilation are the sample's own; the split is the framework's."""
        traced = 0.0
        for _ in range(n):
            jax.clear_caches()
            fresh = Executables(self.programs.program, self.programs.layout)
            started = time.process_time()
            self.steps(0, fresh)  # no step is taken: what is left is the compilation
            traced += time.process_time() - started
        return {"compile_cpu": traced / n}
