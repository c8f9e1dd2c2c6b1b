"""Where training begins: initial values, or weights of a folder."""

import jax
import jax.numpy as jnp

from experiments.execution import Executables
from experiments.members import Member
from experiments.weights import fit_of, start


def first_state(programs: Executables, members: list[Member], seeds, values, steps):
    """The state of some members before their first step.

    All of them start from weights, or none does. A function of their configs and of what
    is in the folders alone, so that a run that is cut before its first checkpoint begins
    again as it began.

    Args:
        seeds, values, steps: of `stack_inputs`.
    """
    if members[0].config.weights.path is None:
        return programs.call("init", seeds, values, steps)
    program = programs.program
    starts = []
    for member in members:
        config = member.config
        own = config.traced_values()
        starts.append(
            start(
                fit_of(config.weights, program.layout),
                lambda seed, own=own: program._build_model(own, seed),
                config.seed,
                program.dtype,
            )
        )
    params, rest = jax.tree.map(lambda *x: jnp.stack(x), *starts)
    return programs.call("begin", params, rest, values, steps)
