"""What a signal becomes on its way through an untrained model, block by block."""

import jax
import jax.numpy as jnp
from flax import nnx

from blocks.stack import Stack
from experiments.data.dataset import ROWS
from experiments.program import Program
from experiments.tasks.at_init import AtInit


class Propagate(AtInit):
    """Measures the stream after every block at initialization; takes no step.

    x_l is the stream after block l (of n streams their close), x_0 what enters the
    first. Beside the quantities of a probe (docs/run_directory.md), a value per block:

        activation/mean, activation/std   over all entries of x_l, std of the population
        activation/zero                   share of entries that are exactly 0
        block_influence                   1 - mean over tokens of cos(x_l-1, x_l)
        token_cosine                      mean cosine between two tokens of a sequence, or
                                          two rows of a batch without tokens

    all in float32, or in the model's dtype where that is wider. Block influence:
    arXiv 2403.03853; collapse of tokens: arXiv 2103.03404, 2206.03126.

    gradients: also measure what the depth task does; false leaves the backward pass out.
    """

    @staticmethod
    def check(*, gradients: bool = True) -> None:
        """Both are fine."""

    def __init__(self, *, gradients: bool = True):
        super().__init__()
        self.gradients = gradients

    def measure(self, program: Program, seed, values: dict, steps, data: dict) -> dict:
        state = program.init(seed, values, steps)
        batch = program.probe_batch(seed, data)
        model = program.layout.merge(state.params, state.rest)
        model.blocks = Recorded(model.blocks)
        loss, measured = model.loss(batch, jnp.zeros(program.tap_shape, program.dtype))
        before, after = (
            jax.vmap(model.ends.close)(measured.pop(name)) for name in STREAMS
        )
        # Rows of numbers are no sequences: as one, all of them are compared.
        is_rows = program.dataset.holds == ROWS
        n_sequences = 1 if is_rows else jax.tree.leaves(batch)[0].shape[0]
        found = {**measured, **statistics(before, after, n_sequences), "loss": loss}
        if self.gradients:
            found |= program.probe(state, seed, data)
        return found


STREAMS = ("stream_before", "stream_after")


class Recorded(nnx.Module):
    """A stack that also returns the state before and after each of its blocks."""

    def __init__(self, stack: Stack):
        self.stack = stack

    def __call__(self, state, shape, *, stream_taps):
        for name in self.stack.places:
            setattr(self.stack, name, RecordedBlock(getattr(self.stack, name)))
        return self.stack(state, shape, stream_taps=stream_taps)


class RecordedBlock(nnx.Module):
    """A block that counts the state it meets and leaves among its measurements."""

    def __init__(self, block):
        self.block = block
        self.names = block.names

    def first_memory(self, n_tokens: int, dtype) -> dict:
        return self.block.first_memory(n_tokens, dtype)

    def __call__(self, before, memory, shape, index, stream_taps):
        after, memory, measured = self.block(before, memory, shape, index, stream_taps)
        streams = dict(zip(STREAMS, (before, after), strict=True))
        return after, memory, {**measured, **streams}


def statistics(before: jax.Array, after: jax.Array, n_sequences: int) -> dict:
    """The quantities of `Propagate` from streams [n_layers, tokens, d_model]."""
    wide = jnp.promote_types(after.dtype, jnp.float32)
    before, after = before.astype(wide), after.astype(wide)
    units = unit(after)
    found = {
        "activation/mean": after.mean(axis=(1, 2)),
        "activation/std": after.std(axis=(1, 2)),
        "activation/zero": (after == 0).mean(axis=(1, 2), dtype=wide),
        "block_influence": 1 - jnp.sum(unit(before) * units, axis=-1).mean(axis=-1),
    }
    tokens = units.reshape(len(units), n_sequences, -1, units.shape[-1])
    n = tokens.shape[2]
    if n > 1:
        # |sum of the units|^2 is the sum over all pairs, a token with itself included.
        pairs = jnp.sum(jnp.square(tokens.sum(axis=2)), axis=-1)
        own = jnp.sum(jnp.square(tokens), axis=(2, 3))
        found["token_cosine"] = ((pairs - own) / (n * (n - 1))).mean(axis=-1)
    return found


def unit(x: jax.Array) -> jax.Array:
    """x / |x| over the last axis; zero stays zero."""
    # By the largest entry first: squares of small entries leave float32.
    largest = jnp.max(jnp.abs(x), axis=-1, keepdims=True)
    x = x / jnp.where(largest > 0, largest, 1)
    length = jnp.sqrt(jnp.sum(jnp.square(x), axis=-1, keepdims=True))
    return x / jnp.where(length > 0, length, 1)
