"""Runs that start from another run's checkpoint."""

import pathlib

from experiments.checkpoints import Checkpoints
from experiments.config import Config, identity_in
from experiments.errors import ConfigError, UserError


def source_of(config: Config) -> pathlib.Path:
    """Folder of the run that `runtime.extend_from` names.

    The 12 digits at the end of the name of a run in the same output folder, its whole
    name, or a path to any run (in quotes: both have = in them).

    Raises:
        ConfigError: there is no such run, or more than one.
    """
    named = config.runtime.extend_from
    path = pathlib.Path(named).expanduser()
    if (path / "checkpoints").is_dir():
        return path
    found = sorted(config.folder.glob(f"*-{identity_in(named)}"))
    if len(found) != 1:
        raise ConfigError(
            f"runtime.extend_from: expected a run of {config.folder} or a path to one, "
            f"got {named!r}"
        )
    return found[0]


def extended(config: Config, like) -> tuple[int, object]:
    """(step, state) of the newest whole checkpoint of the source.

    The optimizer's state comes along; steps, batches and the schedule are counted on:
    `steps` is the length of the whole, and the schedule is that of a run of that length,
    so a rate that had come down jumps up at the seam.

    Raises:
        UserError: there is none, it does not fit the model or the optimizer, or it has
            more steps than this run wants.
    """
    source = source_of(config)
    found, problems = Checkpoints(source / "checkpoints", keep=1).restore(like)
    if found is None:
        reason = "; ".join(problems) or "it has no checkpoint"
        raise UserError(f"runtime.extend_from: {source} cannot be continued: {reason}")
    step, _ = found
    if step >= config.steps:
        raise UserError(
            f"runtime.extend_from: {source} is at step {step}; steps={config.steps} "
            "leaves nothing to do"
        )
    return found
