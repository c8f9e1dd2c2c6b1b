"""The model of a run, for a notebook."""

import json
import os
import pathlib

import jax
import jax.numpy as jnp
from flax import nnx

from blocks.modes import set_training
from experiments.checkpoints import Checkpoints
from experiments.config import Config
from experiments.errors import UserError
from experiments.execution import choose_layout
from experiments.group import executables, load_dataset, signature_of


def trained(run: str | os.PathLike) -> tuple[nnx.Module, int]:
    """The model of a run's folder as it is evaluated, and the step it stands at.

    Of the newest whole checkpoint; with the average of the weights where the run keeps
    one. The run is left as it is, and may go on meanwhile.

    Raises:
        UserError: the folder holds no run, or no checkpoint that fits its config.
    """
    path = pathlib.Path(run).expanduser()
    try:
        node = json.loads((path / "config.json").read_bytes())
    except (OSError, ValueError):
        raise UserError(
            f"{path}: expected the folder of a run (no config.json)"
        ) from None
    config = Config.parse(node)
    signature = signature_of(config, load_dataset(config.data))
    programs = executables(signature, choose_layout("auto", 1))
    program = programs.program
    (like,) = programs.abstract(None, ["state"])
    found, problems = Checkpoints(path / "checkpoints", keep=1).restore(like)
    if found is None:
        raise UserError(f"{path}: {'; '.join(problems) or 'it has no checkpoint yet'}")
    step, state = found
    with jax.enable_x64(signature.x64):
        values = {
            key: jnp.asarray(
                value, jnp.int32 if isinstance(value, int) else program.dtype
            )
            for key, value in config.traced_values().items()
        }
        params = program._evaluated(state, values, jnp.int32(config.steps))
    model = program.layout.merge(params, state.rest)
    set_training(model, False)
    return model, step
