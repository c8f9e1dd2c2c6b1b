"""Training: chunks of compiled steps, with rows, evaluations and checkpoints between."""

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
from experiments.extension import extended
from experiments.guards.restore import Restore
from experiments.guards.skip import Skip
from experiments.guards.stop import Stop
from experiments.members import Member, stack_inputs
from experiments.probes import probe_rows
from experiments.probing import Probe
from experiments.profiling import Profiler
from experiments.program import CHUNK
from experiments.replay import locate, told
from experiments.run import last_value

# Up to this cadence all steps run the program that probes, a few percent slower; beyond
# it a chunk ends before each step that is looked into, which then runs alone.
DENSE = 5

# probe_every=log: these steps, then twenty equal parts of the run.
LOG, LOG_FIRST, LOG_PARTS = "log", (1, 2, 4, 8, 16, 32), 20

METRICS = ("loss", "grad_norm", "learning_rate")


class Train:
    """Trains for `steps` steps.

    Where a run is evaluated, probed and cut into chunks is a function of its config
    alone, so an interrupted run continues as if nothing had happened.

    probe_every: steps between looks inside, the first and the last step always; "log" is
        steps 1, 2, 4, 8, 16, 32 and from there every steps / 20.
    probe: what is looked at; None is `Probe()`.
    guard: which steps are taken, or end the run; None takes all (`experiments.guards`).
    restore: how a run that diverged goes on; None is not at all.
    """

    traced = ()
    takes_weights = True  # of model.from_checkpoint

    @staticmethod
    def check(
        *,
        eval_every: int | None = 200,
        eval_batches: int = 16,
        probe_every: int | str | None = None,
        diverged_above: float = 50.0,
    ) -> None:
        if isinstance(probe_every, str):
            if probe_every != LOG:
                raise ValueError(
                    f"probe_every must be a number of steps, {LOG} or null, "
                    f"got {probe_every!r}"
                )
            probe_every = None
        for name, every in (("eval_every", eval_every), ("probe_every", probe_every)):
            if every is not None and every < 1:
                raise ValueError(f"{name} must be at least 1 or null, got {every}")
        if eval_batches < 1:
            raise ValueError(f"eval_batches must be at least 1, got {eval_batches}")
        if not diverged_above > 0:
            raise ValueError(f"diverged_above must be positive, got {diverged_above}")

    def __init__(
        self,
        *,
        eval_every: int | None = 200,
        eval_batches: int = 16,
        probe_every: int | str | None = None,
        probe: Probe | None = None,
        diverged_above: float = 50.0,
        guard: Skip | Stop | None = None,
        restore: Restore | None = None,
    ):
        del probe  # the program's, not the loop's: `experiments.probing.probe_of`
        self.guard = guard
        self.restore = restore
        self.eval_every = eval_every
        self.eval_batches = eval_batches
        self.probe_every = probe_every
        self.diverged_above = diverged_above

    @property
    def functions(self) -> tuple[str, ...]:
        """Functions of the program that a run calls."""
        names = ["init"] if self.probes_densely else ["init", "train_steps"]
        names += ["evaluate"] if self.eval_every else []
        names += ["probed_steps"] if self.probe_every else []
        return tuple(names)

    def probes_at(self, step: int, steps: int) -> bool:
        """Whether a step of `steps` is looked into: the first, the last, on cadence."""
        return bool(self.probe_every) and step == self.next_probe(step - 1, steps)

    def next_probe(self, step: int, steps: int) -> int:
        """The next step after `step` that is looked into."""
        if step == 0:
            return 1
        if self.probe_every == LOG:
            every, first = max(1, steps // LOG_PARTS), LOG_FIRST
        else:
            every, first = self.probe_every, ()
        soon = [s for s in first if s > step] or [(step // every + 1) * every]
        return min(soon[0], steps)

    @property
    def probes_densely(self) -> bool:
        """Whether every step runs the probing program: cheaper than so many cuts."""
        return isinstance(self.probe_every, int) and self.probe_every <= DENSE

    def run(
        self, programs: Executables, members: list[Member], stop: threading.Event
    ) -> None:
        """Runs members to their end, or to the next checkpoint once `stop` is set.

        Members that share calls must stand at the same step and want the same number
        of them; others take turns.
        """
        (like,) = programs.abstract(None, ["state"])
        waiting = list(members)
        while waiting:
            self._run(programs, waiting, stop, like)
            waiting = [
                m for m in waiting if m.state == "diverged" and self.may_go_on(m)
            ]
            for member in waiting:
                self.restore.prepare(member)
            if stop.is_set():
                for member in waiting:
                    member.state = "preempted"
                    member.directory.update(state="preempted")
                return
        for member in members:
            if member.state == "diverged" and not stop.is_set():
                _locate(programs, member, like)

    def _run(
        self, programs: Executables, members: list[Member], stop: threading.Event, like
    ) -> None:
        """Runs members from where each of them stands."""
        resumed = {id(m): _resume(m, like) for m in members}

        def pace(member):
            step, _ = resumed[id(member)]
            return (
                step,
                member.config.weights.path is None,
                member.config.steps,
                member.config.runtime.checkpoint.every or 0,
            )

        for _, group in itertools.groupby(sorted(members, key=pace), pace):
            for together in programs.layout.batches(list(group)):
                states = [resumed[id(m)][1] for m in together]
                _Lockstep(self, programs, together).run(states, stop)

    def may_go_on(self, member: Member) -> bool:
        """Whether a member that diverged goes back to a checkpoint."""
        return self.restore is not None and self.restore.may(member)


def _locate(programs: Executables, member: Member, like) -> None:
    """Records where a run diverged; that it did stands already, whatever happens here."""
    if not member.config.runtime.locate_divergence:
        return
    try:
        site = locate(programs, member, like)
    except Exception as error:  # out of memory, say
        line = f"{type(error).__name__}: {error}".splitlines()[0]
        site, said = None, f"where it diverged could not be found ({line})"
    else:
        said = told(site)
        member.directory.update(diverged_at=site)
    member.note = "; ".join(filter(None, [member.note, said]))


def _resume(member: Member, like):
    """(step, state) to start from; rows of steps that will be taken again are dropped."""
    checkpoints = Checkpoints(
        member.directory.path / "checkpoints", member.config.runtime.checkpoint.keep
    )
    found, problems = checkpoints.restore(like)
    if found is None and member.config.runtime.extend_from is not None:
        found = extended(member.config, like)
    step, state = found or (None, None)
    rows = member.directory.rewind("metrics.jsonl", step)
    member.directory.rewind("probes.jsonl", step)
    member.restores = member.directory.status().restores
    member.seconds = last_value(rows, "seconds") or 0.0
    member.loss = last_value(rows, "loss")
    member.recall_evaluation(rows)
    member.open_loggers(step or 0)
    if step is not None:
        continued = f"continued from step {step}"
        member.note = "; ".join(filter(None, [member.note, continued]))
    if problems:
        member.note = "; ".join([*problems, member.note or "started over"])
    return (0 if step is None else step), state


class _Lockstep:
    """Members that take every step together."""

    def __init__(self, task: Train, programs: Executables, members: list[Member]):
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
                jnp.int32(n),
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
                jnp.int32(task.eval_batches),
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
