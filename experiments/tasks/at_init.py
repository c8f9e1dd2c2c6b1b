"""What tasks that look at an untrained model and take no step have in common."""

import abc
import threading

import jax

from experiments import distributed
from experiments.execution import Executables
from experiments.members import Member, stack_inputs
from experiments.probes import probe_rows
from experiments.program import Program

ARGUMENTS = ("seeds", "values", "steps", "probe_data")


class AtInit(abc.ABC):
    """One call of `measure` per run; its arrays become rows of step 0.

    A task of this kind is a subclass with its own `measure`; it ignores `steps` of the
    run.
    """

    traced = ()
    functions = ()  # of the program that a run calls: it brings its own

    def __init__(self):
        self._compiled = {}  # number of members -> executable
        self._lock = threading.Lock()

    @abc.abstractmethod
    def measure(self, program: Program, seed, values: dict, steps, data: dict) -> dict:
        """quantity -> array of one member, `loss` among them; traced.

        Arrays are scalar, per layer [n_layers] or per site [n_layers, sub-layers].
        """

    def run(
        self, programs: Executables, members: list[Member], stop: threading.Event
    ) -> None:
        del stop  # over in one call
        seeds, values, steps = stack_inputs(members, programs.program.dtype)
        inputs = (seeds, values, steps, programs.probe_data(seeds))
        measure = self._compile(programs, len(members))
        measured = measure(*programs.placed(ARGUMENTS, inputs))
        measured = jax.device_get(jax.tree.map(distributed.whole, measured))
        for i, member in enumerate(members):
            one = {k: v[i] for k, v in measured.items()}
            record(member, one)

    def _compile(self, programs: Executables, n_members: int):
        """`measure` over the member axis, compiled by the thread that asks first."""
        with self._lock:
            if n_members not in self._compiled:

                def measure(*one):
                    return self.measure(programs.program, *one)

                lowered = programs.lower(measure, ARGUMENTS, n_members)
                self._compiled[n_members] = lowered.compile()
        return self._compiled[n_members]


def record(member: Member, measured: dict) -> None:
    """Writes what was measured at step 0, and that the run is over.

    measured: quantity -> array, `loss` among them.
    """
    member.loss = float(measured["loss"])
    row = {"step": 0, "loss": member.loss}
    if "grad_norm/total" in measured:
        row["grad_norm"] = float(measured["grad_norm/total"])
    member.directory.rewind("metrics.jsonl", None)
    member.directory.rewind("probes.jsonl", None)
    member.directory.append("probes.jsonl", probe_rows(0, measured))
    member.open_loggers(0)
    member.write([row])
    member.state = "completed"
    member.directory.update(state="completed", step=0, steps=0)
