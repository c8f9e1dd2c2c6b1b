"""What a checkpoint is like inside: stream, branches, gradients, use of each block."""

import functools
import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from blocks.stack import Stack
from experiments.data.dataset import ROWS
from experiments.execution import Executables
from experiments.members import Member
from experiments.probing import Probe
from experiments.program import Program
from experiments.quantities import gradient_norms, quantities
from experiments.tasks.at_init import record
from experiments.tasks.propagate import statistics
from experiments.weights import fit_of, start

DTYPES = ("float32", "bfloat16", None)
# A CPU multiplies bfloat16 as float32. XLA would move that conversion out of the loop over
# layers, and hold the parameters a second time, twice as wide.
compiled = functools.partial(
    jax.jit,
    compiler_options={"xla_disable_hlo_passes": "while-loop-invariant-code-motion"},
)
PIECE = 2**26  # entries of an unembedding that are converted at a time


class Inspect:
    """Measures the model of `model.from_checkpoint` on one batch; takes no step.

    The batch is taken in `accumulate` equal parts, one after the other, and numbers are
    means over them (maxima where they are maxima). Beside the quantities of a probe
    (docs/run_directory.md), a value per block:

        activation/mean, activation/std, activation/zero, block_influence, token_cosine
                              as task=propagate measures them
        loss_without_block    the loss of the model that lacks this block: the state of
                              the residual scheme passes by as it was
                              (arXiv 2403.03853; one program whatever the depth)

    param_dtype: of the parameters in memory, float32 or bfloat16; null is bfloat16 where
        the checkpoint holds nothing else, which loses nothing, and float32 otherwise.
        What is computed in is `model.dtype`.
    gradients: also measure the gradient of every parameter. It takes as much memory as
        the parameters once more.
    removal: also measure `loss_without_block`: a forward pass for every block.
    probe: what is looked at beside gradients and the stream; None is `Probe()`.
    """

    traced = ()
    functions = ()  # of the program that a run calls: it brings its own
    takes_weights = needs_weights = True

    @staticmethod
    def check(
        *,
        param_dtype: str | None = None,
        gradients: bool = True,
        removal: bool = True,
    ) -> None:
        if param_dtype not in DTYPES:
            raise ValueError(
                f"param_dtype must be float32, bfloat16 or null, got {param_dtype!r}"
            )

    def __init__(
        self,
        *,
        param_dtype: str | None = None,
        gradients: bool = True,
        removal: bool = True,
        probe: Probe | None = None,
    ):
        del probe  # the program's: `experiments.probing.probe_of`
        self.param_dtype = param_dtype
        self.gradients = gradients
        self.removal = removal
        self._turn = threading.Lock()

    def run(
        self, programs: Executables, members: list[Member], stop: threading.Event
    ) -> None:
        for member in members:
            with self._turn:  # one model in memory at a time, however many threads
                if stop.is_set():
                    member.state = "preempted"
                    member.directory.update(state="preempted")
                    continue
                record(member, jax.device_get(self.inspect(programs, member)))

    def inspect(self, programs: Executables, member: Member) -> dict[str, Any]:
        """quantity -> array of one run, `loss` among them."""
        program, config = programs.program, member.config
        seed, values = jnp.uint32(config.seed), config.traced_values()
        params, rest = start(
            fit_of(config.weights, program.layout),
            lambda seed: program._build_model(values, seed),
            config.seed,
            self.param_dtype,
        )
        data = programs.probe_data(seed[None])
        if program.dataset.stream is not None:
            data = jax.tree.map(lambda x: x[0], data)
        batch = jax.jit(program.probe_batch)(seed, data)
        k = config.accumulate
        parts = jax.tree.map(lambda x: x.reshape(k, -1, *x.shape[1:]), batch)
        parts = [jax.tree.map(lambda x, i=i: x[i], parts) for i in range(k)]
        # Calls one after the other, not a loop inside a program: what is the same in
        # every turn of a loop, XLA computes once, and so keeps float32 copies of all.
        found = self.look(program, params, rest, parts)
        if self.removal:
            found["loss_without_block"] = removal(program, params, rest, parts)
        return found

    def look(self, program: Program, params: dict, rest: dict, parts: list) -> dict:
        """All quantities but `loss_without_block`: means over the parts, or maxima."""
        taps = jnp.zeros(program.tap_shape, program.dtype)
        n = len(parts)

        def forward(params, taps, rest, part):
            return described_loss(program, params, rest, part, taps)

        def forward_and_backward(params, taps, rest, part, total):
            (loss, measured), (grads, squares) = jax.value_and_grad(
                forward, argnums=(0, 1), has_aux=True
            )(params, taps, rest, part)
            total = {path: total[path] + grads[path] / n for path in total}
            return loss, measured, squares, total

        if not self.gradients:
            call = compiled(forward)
            rows = [jax.device_get(call(params, taps, rest, part)) for part in parts]
            found = over_parts([{"loss": loss, **more} for loss, more in rows])
            found = quantities(found, taps, len(taps))
            del found["stream_grad_norm"]
            return found
        call = compiled(forward_and_backward, donate_argnums=4)
        total, rows = {path: jnp.zeros_like(x) for path, x in params.items()}, []
        for part in parts:
            loss, measured, squares, total = call(params, taps, rest, part, total)
            row = {"loss": loss, "tap_squares": squares, **measured}
            rows.append(jax.device_get(row))
        found = over_parts(rows)
        # A part's share of the loss is 1 / n, and with it that of every gradient.
        squares = found.pop("tap_squares") / n
        norms = gradient_norms(squares_of(total, program), program.places)
        return {**quantities(found, squares, len(taps)), **norms}


def described_loss(program: Program, params, rest, part, taps):
    """The loss, and what a probe and `Described` measure; traced."""
    model = program._model(params, rest, is_training=False, looks=program.probed.looks)
    is_rows = program.dataset.holds == ROWS
    n_sequences = 1 if is_rows else jax.tree.leaves(part)[0].shape[0]
    model, close = in_pieces(model), model.ends.close
    model.blocks = Wrapped(
        model.blocks, lambda block: Described(block, close, n_sequences)
    )
    return model.loss(part, taps)


def over_parts(rows: list[dict]) -> dict[str, np.ndarray]:
    """Means of what was measured on equal parts, and maxima of what are maxima."""
    return {
        name: (np.max if name.endswith("_max") else np.mean)(
            [row[name] for row in rows], axis=0
        )
        for name in rows[0]
    }


def squares_of(grads: dict, program: Program) -> dict:
    """Path -> squared norm of the gradient in float32 or wider, of each layer."""
    squares = {}
    for path, grad in grads.items():
        wide = jnp.promote_types(grad.dtype, jnp.float32)
        n_stacked = program.layout.specs[path].n_stacked
        axes = tuple(range(min(n_stacked, 1), grad.ndim))
        squares[path] = jnp.sum(jnp.square(grad.astype(wide)), axis=axes)
    return squares


def removal(program: Program, params: dict, rest: dict, parts: list) -> np.ndarray:
    """Loss without each of the blocks, [n_layers]: a forward pass for each, in turn."""

    @compiled
    def without(params, rest, part, gone):
        model = in_pieces(program._model(params, rest, is_training=False))
        model.blocks = Wrapped(model.blocks, lambda block: Skipped(block, gone))
        return model.loss(part)[0]

    n_layers, _ = program.tap_shape
    losses = [
        [float(without(params, rest, part, jnp.int32(i))) for part in parts]
        for i in range(n_layers)
    ]
    return np.mean(losses, axis=1)


def in_pieces(model: nnx.Module) -> nnx.Module:
    """The model, with a large unembedding of a narrower type taken a piece at a time."""
    if not hasattr(model, "head") or not hasattr(model, "table"):
        return model
    of_head = model.head is not None
    matrix = model.head.kernel[...] if of_head else model.table[...]
    if matrix.size > PIECE and matrix.dtype != model.dtype:
        bias = model.head.bias if of_head else None
        model.head = Pieces(matrix, 1 if of_head else 0, bias)
    return model


class Pieces(nnx.Module):
    """x @ matrix + bias, a piece of the vocabulary at a time.

    The whole in the type of x, which a product makes of it, can be half as large as all
    parameters together. axis: of `matrix` that is the vocabulary.
    """

    def __init__(self, matrix: jax.Array, axis: int, bias: nnx.Param | None):
        self.matrix = nnx.Param(matrix)
        self.axis = axis
        self.bias = bias

    def __call__(self, x: jax.Array) -> jax.Array:
        matrix, n_words = self.matrix[...], self.matrix.shape[self.axis]
        n = -(-matrix.size // PIECE)
        size = -(-n_words // n)

        def product(first):
            piece = jax.lax.dynamic_slice_in_dim(matrix, first, size, self.axis)
            piece = piece.astype(x.dtype)
            return x @ (piece if self.axis else piece.T)

        # The last piece begins early enough to be whole.
        firsts = jnp.minimum(jnp.arange(n) * size, n_words - size)
        *most, last = jax.lax.map(product, firsts)
        logits = jnp.concatenate([*most, last[:, n * size - n_words :]], axis=1)
        return logits if self.bias is None else logits + self.bias[...].astype(x.dtype)


class Wrapped(nnx.Module):
    """A stack with `wrap` around each of its blocks."""

    def __init__(self, stack: Stack, wrap):
        self.stack = stack
        self.wrap = wrap

    def __call__(self, state, shape, *, stream_taps=None):
        for name in self.stack.places:
            setattr(self.stack, name, self.wrap(getattr(self.stack, name)))
        return self.stack(state, shape, stream_taps=stream_taps)


class Block(nnx.Module):
    """What a stack asks of its blocks, handed on to one that is wrapped."""

    def __init__(self, block: nnx.Module):
        self.block = block
        self.names = block.names

    def first_memory(self, n_tokens: int, dtype) -> dict:
        return self.block.first_memory(n_tokens, dtype)


class Described(Block):
    """A block that adds the statistics of the state around it to its measurements.

    close: state -> stream. n_sequences: of a batch.
    """

    def __init__(self, block: nnx.Module, close, n_sequences: int):
        super().__init__(block)
        self.close = lambda state: close(state)[None]
        self.n_sequences = n_sequences

    def __call__(self, before, memory, shape, index, stream_taps):
        after, memory, measured = self.block(before, memory, shape, index, stream_taps)
        streams = jax.lax.stop_gradient((self.close(before), self.close(after)))
        found = statistics(*streams, self.n_sequences)
        return after, memory, measured | {name: x[0] for name, x in found.items()}


class Skipped(Block):
    """A block that is not there if its number is `gone`, which may be traced."""

    def __init__(self, block: nnx.Module, gone: jax.Array):
        super().__init__(block)
        # In a closure: an array would be taken for one of each layer.
        self.is_gone = lambda index: index == gone

    def __call__(self, before, memory, shape, index, stream_taps):
        found = self.block(before, memory, shape, index, stream_taps)
        after, remembered, measured = found
        gone = self.is_gone(index)
        after, memory = jax.tree.map(
            lambda old, new: jnp.where(gone, old, new),
            (before, memory),
            (after, remembered),
        )
        return after, memory, measured
