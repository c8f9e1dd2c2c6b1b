"""State of a module that is carried and saved, but not trained by gradients."""

from flax import nnx


class Running(nnx.Variable):
    """A statistic, counter or key that the forward pass itself moves on.

    Assign to it in `__call__` (`self.mean[...] = new`): the layer scan, the training
    step, checkpoints and vmap over members carry the new value. Arrays of float32 or
    uint32, so that a checkpoint restores every bit. `Running(value, probe=True)` is shown
    by probes.
    """
