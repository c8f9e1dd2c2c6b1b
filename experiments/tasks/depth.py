"""The loss gradient of an untrained model, layer by layer."""

import threading

import jax

from experiments.execution import Executables
from experiments.members import Member, stack_inputs
from experiments.tasks.at_init import record


class Depth:
    """Measures the gradient at initialization and takes no step.

    Writes for every parameter of the stack the Frobenius norm of dLoss/dW of each layer,
    the residual mean square s_l^2, the input's s_0^2, the branch gain v, and the gradient
    of the residual stream (docs/run_directory.md). `steps` is ignored.

    any_depth: runs that differ in depth share one program, which takes the depth as an
        input (`blocks.grown_stack`); false compiles one program per depth, as do models
        that cannot grow (patterns over layers, blocks with state).
    """

    traced = ()

    def __init__(self, *, any_depth: bool = True):
        self.any_depth = any_depth

    @property
    def functions(self) -> tuple[str, ...]:
        """Functions of the program that a run calls."""
        return ("probe_at_any_depth",) if self.any_depth else ("probe_at_init",)

    def run(
        self, programs: Executables, members: list[Member], stop: threading.Event
    ) -> None:
        del stop  # over in one call
        seeds, values, steps = stack_inputs(members, programs.program.dtype)
        (name,) = self.functions
        measured = jax.device_get(
            programs.call(name, seeds, values, steps, programs.data)
        )
        for i, member in enumerate(members):
            n_layers = member.config.model["n_layers"]
            one = {
                k: v[i][:n_layers] if v[i].ndim else v[i] for k, v in measured.items()
            }
            record(member, one)
