"""Where a run diverged: the step is taken once more, with a look inside."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments import distributed
from experiments.beginning import first_state
from experiments.checkpoints import Checkpoints
from experiments.execution import Executables
from experiments.members import Member, stack_inputs
from experiments.program import CHUNK


def locate(programs: Executables, member: Member, like) -> dict[str, Any]:
    """What was not finite in step `member.diverged_step`, as plain data.

    The run goes from its last checkpoint (or its start) to the step before, which on a
    CPU gives the same bits again, and takes the step with a probe. See `site_of`.

    Args:
        like: shapes of the state of one member.
    """
    config, bad = member.config, member.diverged_step
    keep = config.runtime.checkpoint.keep
    folder = member.directory.path / "checkpoints"
    found, _ = Checkpoints(folder, keep).restore(like)
    inputs = stack_inputs([member], programs.program.dtype)
    restore = config.task.get("restore")
    batches = inputs
    if restore is not None:
        restore = restore.build({}, "task.restore")
        batches = (*restore.inputs([member], *inputs[:2]), inputs[2])
    if found is None:
        step, state = 0, first_state(programs, [member], *inputs)
    else:
        step, state = found[0], jax.tree.map(lambda x: x[None], found[1])

    def take(function, state, n):
        arguments = (*batches, jnp.int32(n), programs.data)
        return programs.call(function, state, *arguments)

    while step < bad - 1:
        n = min(CHUNK - step % CHUNK, bad - 1 - step)  # as training: no call crosses
        state, _ = take("train_steps", state, n)
        step += n
    before = {path: distributed.whole(x[0]) for path, x in state.params.items()}
    _, rows = take("probed_steps", state, 1)
    return site_of(before, {name: np.asarray(x[0, 0]) for name, x in rows.items()})


def site_of(params: dict[str, np.ndarray], row: dict[str, np.ndarray]) -> dict:
    """The first place of a step that is not finite, in the order in which it computes.

        parameter   before the step; the update of the step before made it so
        branch      what a sub-layer adds to the stream: layer, sublayer (from 0)
        loss        behind all blocks
        gradient    the deepest layer with one: it came first, from the loss
        none        all is finite, the loss is too large; `largest_gradient` is named

    Args:
        params: by path.
        row: quantities of a probed step (docs/run_directory.md).
    """
    for path, value in params.items():
        if not np.isfinite(value).all():
            return {"kind": "parameter", "path": path}
    branches = np.asarray(row["branch_mean_square"])
    if not np.isfinite(branches).all():
        layer, sublayer = np.argwhere(~np.isfinite(branches))[0]
        return {"kind": "branch", "layer": int(layer), "sublayer": int(sublayer)}
    if not np.isfinite(row["loss"]):
        return {"kind": "loss"}
    gradients = {
        name.removeprefix("grad_norm/"): np.atleast_1d(value)
        for name, value in row.items()
        if name.startswith("grad_norm/") and name != "grad_norm/total"
    }
    # Where layers are not all alike those without a parameter are NaN in its row, so the
    # total says whether there is anything to look for.
    if not np.isfinite(row["grad_norm/total"]):
        bad = {name: np.flatnonzero(~np.isfinite(v)) for name, v in gradients.items()}
        name = max((n for n in bad if len(bad[n])), key=lambda n: bad[n][-1])
        site = {"kind": "gradient", "path": name}
        if len(gradients[name]) > 1:
            site["layer"] = int(bad[name][-1])
        return site
    name = max(gradients, key=lambda n: np.nanmax(gradients[n]))
    site = {"kind": "none", "largest_gradient": name}
    if len(gradients[name]) > 1:
        site["layer"] = int(np.nanargmax(gradients[name]))
    return site


def told(site: dict) -> str:
    """A site in words."""
    at = f" of layer {site['layer']}" if "layer" in site else ""
    if site["kind"] == "parameter":
        return f"parameter {site['path']} was not finite before the step"
    if site["kind"] == "branch":
        return f"sub-layer {site['sublayer']}{at} was the first that was not finite"
    if site["kind"] == "loss":
        return "the loss was the first that was not finite"
    if site["kind"] == "gradient":
        return f"the gradient of {site['path']}{at} was the first that was not finite"
    return (
        f"all finite; the largest gradient was that of {site['largest_gradient']}{at}"
    )
