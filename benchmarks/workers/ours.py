"""The framework itself, through its own compiled functions.

Commands:
    run       n steps of `train_steps`, up to 50 in a call, metrics fetched per call
    probed    n steps of `probed_steps`, which measures every layer at every step; the
              rows are made and serialised
    cadence   n steps with a probe every 50, cut into calls as a run cuts them
    compile   n times: trace and compile `train_steps` from nothing

Rows are not written to disk and no checkpoint is saved here; the commands that launch
whole processes (sweep, startup) include that.
"""

import json

import jax
import jax.numpy as jnp

from benchmarks.points import Point
from benchmarks.worker import Built
from benchmarks.workers.ours_config import overrides
from experiments import api
from experiments.environment import set_up
from experiments.execution import Executables
from experiments.group import plan
from experiments.lockstep import METRICS
from experiments.members import stack_inputs
from experiments.probes import probe_rows
from experiments.program import CHUNK


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
    fixed = ("steps=1000000000", f"runtime.layout={layout}")
    fixed += ("runtime.compilation_cache=null", seeds)
    configs = api.compose([*overrides(point, text), *extra, *fixed])
    set_up(None)
    (group,) = plan(configs)
    runs = [
        _Run(group, batch) for batch in group.programs.layout.batches(group.members)
    ]

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

    def call(self, function: str, n: int) -> dict:
        """At most CHUNK steps of one of the training functions; what they measured."""
        data = self.programs.data
        self.state, rows = self.programs.call(
            function, self.state, *self.inputs, jnp.int32(n), data
        )
        rows = jax.device_get(rows)
        self.step += n
        self.loss = float(rows["loss"][0, n - 1])
        return rows

    def run(self, n: int) -> dict:
        for start in range(0, n, CHUNK):
            self.call("train_steps", min(CHUNK, n - start))
        return {"loss": self.loss}

    def probe(self, n: int) -> None:
        """n <= CHUNK steps, all looked into, and their rows as they are written."""
        first = self.step + 1
        rows = self.call("probed_steps", n)
        names = [name for name in rows if name not in METRICS]
        for i in range(self.inputs[0].shape[0]):
            for k in range(n):
                values = {name: rows[name][i, k] for name in names}
                values["loss"] = rows["loss"][i, k]
                for row in probe_rows(first + k, values):
                    json.dumps(row)

    def probed(self, n: int) -> dict:
        for start in range(0, n, CHUNK):
            self.probe(min(CHUNK, n - start))
        return {"loss": self.loss}

    def cadence(self, n: int) -> dict:
        """Cut as a run with `task.probe_every=50` is: before each probed step."""
        left = n
        while left:
            ahead = CHUNK - 1 - self.step % CHUNK
            if ahead:
                now = min(ahead, left)
                self.call("train_steps", now)
            else:
                now = 1
                self.probe(1)
            left -= now
        return {"loss": self.loss}

    def compile(self, n: int) -> dict:
        n_members = self.inputs[0].shape[0]
        for _ in range(n):
            jax.clear_caches()  # also what was traced before
            fresh = Executables(self.programs.program, self.programs.layout)
            fresh.compile("train_steps", n_members)
        return {}
