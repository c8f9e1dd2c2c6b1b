"""Training: which members go together, from where, and which come back."""

import itertools
import threading

from experiments.checkpoints import Checkpoints
from experiments.execution import Executables
from experiments.extension import extended
from experiments.guards.restore import Restore
from experiments.guards.skip import Skip
from experiments.guards.stop import Stop
from experiments.lockstep import Lockstep
from experiments.members import Member
from experiments.probing import Probe
from experiments.replay import locate, told
from experiments.run import last_value

# Up to this cadence all steps run the program that probes, a few percent slower; beyond
# it a chunk ends before each step that is looked into, which then runs alone.
DENSE = 5

# probe_every=log: these steps, then twenty equal parts of the run.
LOG, LOG_FIRST, LOG_PARTS = "log", (1, 2, 4, 8, 16, 32), 20


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
                Lockstep(self, programs, together).run(states, stop)

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
