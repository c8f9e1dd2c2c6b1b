"""How far one step of gradient descent moves the output of an untrained model."""

import math

import jax
import jax.numpy as jnp

from experiments.errors import ConfigError
from experiments.program import Program
from experiments.tasks.at_init import AtInit


class UpdateSize(AtInit):
    """Takes one SGD step at initialization and measures what it does to the output.

        update_rms = RMS(f(theta - learning_rate * grad) - f(theta)) / learning_rate

    f is the output before the head, normalized where the model ends in a norm; the
    gradient is that of the run's loss on its probe batch and the same batch is read
    again. The optimizer of the config plays no part. Beside it the quantities of a
    probe (docs/run_directory.md).

    learning_rate: small, so that the answer does not depend on it; in float32 the
        difference of two outputs drowns in rounding, so use model.dtype=float64.

    Source: the bounded update of arXiv 2203.00555 section 3.
    """

    @staticmethod
    def check(*, learning_rate: float = 0.1) -> None:
        if not (math.isfinite(learning_rate) and learning_rate > 0):
            raise ValueError(f"learning_rate must be positive, got {learning_rate}")

    def __init__(self, *, learning_rate: float = 0.1):
        super().__init__()
        self.learning_rate = learning_rate

    def measure(self, program: Program, seed, values: dict, steps, data: dict) -> dict:
        state = program.init(seed, values, steps)
        batch = program.probe_batch(seed, data)
        loss = program.loss_of_a_batch
        grads = jax.grad(loss)(state.params, state.rest, seed, data)

        def output(params):
            return output_of(program.layout.merge(params, state.rest), batch)

        moved = jax.tree.map(
            lambda w, g: w - self.learning_rate * g, state.params, grads
        )
        difference = (output(moved) - output(state.params)) / self.learning_rate
        size = jnp.sqrt(jnp.mean(jnp.square(difference)))
        return {**program.probe(state, seed, data), "update_rms": size}


def output_of(model, batch) -> jax.Array:
    """What a model hands to its head, or gives where it has none."""
    if not hasattr(model, "hidden"):
        return model(batch["x"])[0]
    if isinstance(batch, dict):
        raise ConfigError(
            "task: update_size looks at models of tokens or rows of numbers, this one "
            f"reads {model.reads}"
        )
    hidden, _ = model.hidden(batch[:, :-1])
    return hidden if model.final_norm is None else model.final_norm(hidden)
