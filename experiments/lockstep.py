"""Members that take every step together: chunks of compiled steps, and between them
rows, evaluations and checkpoints."""

import itertools
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np

from experiments.alarm import Alarm
from experiments.beginning import first_state
from experiments.checkpoints import Checkpoints, digest
from experiments.config import parse_span
from experiments.execution import Executables
from experiments.members import Member, stack_inputs
from experiments.probes import probe_rows
from experiments.profiling import Profiler
from experiments.program import CHUNK

METRICS = ("loss", "grad_norm", "learning_rate")


class Lockstep:
    """Takes members to their end, or to a stop.

    task: a `Train`: where a run is evaluated, probed and ended.
    """

    def __init__(self, task, programs: Executables, members: list[Member]):
        self.task = task
        self.programs = programs
        self.members = members
        self.config = members[0].config
        self.seeds, self.values, self.steps = stack_inputs(
            members, programs.program.dtype
        )
        self.batch_seeds = self.seeds
        if task.restore is not None:
            self.batch_seeds, self.values = task.restore.inputs(
                members, self.seeds, self.values
            )
        self.told = task.guard.told if task.guard else ()
        self.tokens_per_step = programs.program.items_per_batch
        self.checkpoints = [
            Checkpoints(
                m.directory.path / "checkpoints", m.config.runtime.checkpoint.keep
            )
            for m in members
        ]
        self.alarms = [Alarm() for _ in members]
        for member, alarm in zip(members, self.alarms, strict=True):
            rows = member.directory.rows("probes.jsonl")  # of earlier attempts
            for _, at_step in itertools.groupby(rows, lambda row: row["step"]):
                if alarm.meet(list(at_step)):
                    self.warn(member, alarm.warning)
        self.saved = 0.0
        profile = self.config.runtime.profile
        self.profiler = Profiler(
            parse_span(profile) if profile else None,
            members[0].directory.path / "profile",
        )

    # -- the loop ----------------------------------------------------------------

    def run(self, states: list, stop: threading.Event) -> None:
        try:
            self._run(states, stop)
        finally:
            self.profiler.close()

    def _run(self, states: list, stop: threading.Event) -> None:
        step = 0
        if states[0] is None:
            inputs = (self.seeds, self.values, self.steps)
            state = first_state(self.programs, self.members, *inputs)
            self.measure(state, 0)
        else:
            state = jax.tree.map(lambda *x: jnp.stack(x), *states)
            step = int(state.step[0])
        end = self.config.steps
        while step < end and any(m.state == "running" for m in self.members):
            self.profiler.at(step)
            n = self.next_stop(step) - step
            started = time.perf_counter()
            state, rows = self.programs.call(
                self.function_for(step),
                state,
                self.batch_seeds,
                self.values,
                self.steps,
                np.int32(n),
                self.programs.data,
            )
            rows = jax.device_get(rows)
            self.record(step, n, rows, time.perf_counter() - started)
            self.record_probes(step, n, rows)
            step += n
            self.measure(state, step)
            stopped = stop.is_set()
            if step < end and (stopped or self.is_due(step, self.every)):
                self.save(state, step)
            if stopped and step < end:
                for member in self.running():
                    member.state = "preempted"
                    member.directory.update(state="preempted", step=step)
                return
        self.profiler.at(step)
        self.finish(state, step)

    @property
    def every(self) -> int | None:
        return self.config.runtime.checkpoint.every

    def running(self) -> list[Member]:
        return [m for m in self.members if m.state == "running"]

    @staticmethod
    def is_due(step: int, every: int | None) -> bool:
        return every is not None and step % every == 0

    def next_stop(self, step: int) -> int:
        """The next step at which something other than training happens."""
        task, steps = self.task, self.config.steps
        cadences = (CHUNK, task.eval_every, self.every)
        stops = [(step // every + 1) * every for every in cadences if every]
        stops += [at for at in self.profiler.stops if at > step]
        if task.probe_every and not task.probes_densely:
            probe = task.next_probe(step, steps)
            stops.append(probe if probe == step + 1 else probe - 1)
        return min(*stops, steps)

    def function_for(self, step: int) -> str:
        """Which program takes the steps of the chunk that begins after `step`."""
        alone = self.task.probes_at(step + 1, self.config.steps)
        probing = self.task.probes_densely or alone
        return "probed_steps" if probing else "train_steps"

    # -- what is written ---------------------------------------------------------

    def record(self, start: int, n: int, metrics: dict, seconds: float) -> None:
        """Rows of the steps start + 1 .. start + n; finds members that diverged."""
        for i, member in enumerate(self.members):
            if member.state != "running":
                continue
            loss = metrics["loss"][i, :n]
            grad = metrics["grad_norm"][i, :n]
            # A plain comparison is False for NaN, as it should be here.
            fine = np.isfinite(grad) & (loss <= self.task.diverged_above)
            told = {name: metrics[name][i, :n] for name in self.told}
            if self.task.guard:
                fine = self.task.guard.judged(fine, told)
            bad = None if fine.all() else int(np.argmin(fine))
            last = n if bad is None else bad + 1
            rows = []
            for k in range(last):
                step = start + k + 1
                logged = (
                    step % member.config.log_every == 0 or step == member.config.steps
                )
                if not (logged or k == bad):
                    continue
                row = {
                    "step": step,
                    "loss": float(loss[k]),
                    "grad_norm": float(grad[k]),
                    "learning_rate": float(metrics["learning_rate"][i, k]),
                    "tokens": step * self.tokens_per_step,
                    "seconds": round(member.seconds + seconds * (k + 1) / n, 4),
                    "tokens_per_second": round(n * self.tokens_per_step / seconds, 1),
                }
                if self.task.guard:
                    row |= {c: int(told[c][k]) for c in self.task.guard.columns}
                rows.append(row)
            member.seconds += seconds
            member.step = start + last
            member.loss = float(loss[last - 1])
            member.tokens_per_second = n * self.tokens_per_step / seconds
            member.pending = rows
            if bad is not None:
                self.flush(member)
                member.state = "diverged"
                member.forget_evaluation()
                member.diverged_step = start + bad + 1
                if self.task.may_go_on(member):  # not the end of it
                    continue
                member.directory.update(
                    state="diverged", step=member.step, diverged_step=member.step
                )

    def record_probes(self, start: int, n: int, rows: dict) -> None:
        """Probe rows of the steps start + 1 .. start + n that are looked into."""
        quantities = [name for name in rows if name not in (*METRICS, *self.told)]
        if not quantities:
            return
        for i, member in enumerate(self.members):
            if member.state not in ("running", "diverged"):
                continue
            for k in range(member.step - start):
                if self.task.probes_at(start + k + 1, self.config.steps):
                    values = {name: rows[name][i, k] for name in quantities}
                    values["loss"] = rows["loss"][i, k]
                    written = probe_rows(start + k + 1, values)
                    member.directory.append("probes.jsonl", written)
                    if self.alarms[i].meet(written):
                        self.warn(member, self.alarms[i].warning)

    @staticmethod
    def warn(member: Member, warning: str) -> None:
        """Says that a run has probably failed, which goes on all the same."""
        member.note = "; ".join(filter(None, [member.note, warning]))
        member.directory.update(warning=warning)

    def measure(self, state, step: int) -> None:
        """Evaluates where it is time, and writes the rows of the chunk."""
        at_end = step == self.config.steps
        task, call = self.task, self.programs.call
        if task.eval_every and (at_end or self.is_due(step, task.eval_every)):
            found = call(
                "evaluate",
                state,
                self.seeds,
                self.values,
                self.steps,
                np.int32(task.eval_batches),
                self.programs.data,
            )
            found = {name: np.asarray(x) for name, x in found.items()}
            for i, member in enumerate(self.members):
                if member.state == "running":
                    values = {f"val_{name}": float(x[i]) for name, x in found.items()}
                    self.put_evaluation(member, step, values)
        now = time.monotonic()
        for member in self.running():
            self.flush(member)
        if now - self.saved > 1.0:  # where a run stands: once a second is enough
            self.saved = now
            for member in self.running():
                member.directory.update(step=step)

    def put_evaluation(self, member: Member, step: int, values: dict) -> None:
        """Into the row of the step, or one of its own."""
        member.recall_evaluation([values])
        if not member.pending or member.pending[-1]["step"] != step:
            member.pending.append({"step": step, "tokens": step * self.tokens_per_step})
        member.pending[-1].update(values)

    @staticmethod
    def flush(member: Member) -> None:
        member.write(member.pending)
        member.pending = []

    def save(self, state, step: int) -> None:
        for i, (member, checkpoints) in enumerate(
            zip(self.members, self.checkpoints, strict=True)
        ):
            if member.state == "running":
                checkpoints.save(step, jax.tree.map(lambda x, i=i: x[i], state))
                member.directory.update(step=step)

    def finish(self, state, step: int) -> None:
        """The last checkpoint and the final status of whoever came through."""
        self.save(state, step)
        for i, member in enumerate(self.members):
            if member.state == "running":
                params = {path: x[i] for path, x in state.params.items()}
                member.state = "completed"
                member.step = step
                member.directory.update(
                    state="completed", step=step, params_digest=digest(params)
                )
