"""Batches made on the host, a block at a time, for data too large for the device."""

import contextlib
import functools
import threading
from concurrent.futures import Future, ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np

from experiments.program import CHUNK, PROBE, TRAIN, VALIDATION, Program

# Argument of a program's functions -> stream of random numbers, split.
STREAMS = {
    "data": (TRAIN, "train"),
    "validation_data": (VALIDATION, "validation"),
    "probe_data": (PROBE, "train"),
}


def block_sizes(program: Program) -> dict[str, int]:
    """Argument -> batches in a block of it.

    A training block is that of the steps CHUNK * i + 1 .. CHUNK * (i + 1), which no call
    crosses; the others hold all that there are.
    """
    return {
        "data": CHUNK,
        "validation_data": program.signature.task.get("eval_batches", 1),
        "probe_data": 1,
    }


def block_shapes(program: Program, argument: str, n_members: int | None) -> dict:
    """{"batches": [n_members, batches, batch_size, seq_len + 1]} of one argument.

    `n_members` None: of one member, without the first axis.
    """
    signature = program.signature
    shape = (
        *(() if n_members is None else (n_members,)),
        block_sizes(program)[argument],
        signature.batch_size,
        signature.seq_len + 1,
    )
    return {"batches": jax.ShapeDtypeStruct(shape, program.dataset.stream.dtype)}


class Blocks:
    """The blocks of a program whose data are streamed.

    Of training the block after the one asked for is read, and put on the device, by a
    thread while the device computes. Each thread that asks has one group of members at a
    time, so at most two blocks of each are in memory, however many members there are.
    """

    def __init__(self, program: Program):
        self._program = program
        self._sizes = block_sizes(program)
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="blocklab-reader")
        self._asking = threading.local()
        self._draws = {
            argument: jax.jit(functools.partial(self._draw, argument))
            for argument in STREAMS
        }

    def training(self, seeds: jax.Array, step: int, n: int, steps: int) -> dict:
        """The block that steps step + 1 .. step + n of members are in.

        Args:
            steps: where training ends; nothing beyond is read ahead.

        Raises:
            ValueError: steps of two blocks, or as `Stream.read`.
        """
        number = step // CHUNK
        if step + n > (number + 1) * CHUNK:
            raise ValueError(
                f"streamed data: steps {step + 1} to {step + n} are not in one chunk "
                f"of {CHUNK}"
            )
        seeds = np.asarray(seeds)
        wanted = [number, *([number + 1] if (number + 1) * CHUNK < steps else [])]
        kept = getattr(self._asking, "blocks", {})
        blocks: dict[tuple, Future] = {}
        for i in wanted:
            key = (seeds.tobytes(), i)
            blocks[key] = kept.get(key) or self._reader.submit(
                self.make, "data", seeds, i * CHUNK
            )
        self._asking.blocks = {} if step + n >= steps else blocks
        return blocks[seeds.tobytes(), number].result()

    def make(self, argument: str, seeds: np.ndarray, first: int = 0) -> dict:
        """One block, from batch number `first` of its stream on, on the device."""
        _, split = STREAMS[argument]
        stream, signature = self._program.dataset.stream, self._program.signature
        with jax.enable_x64(True), _on_host():
            numbers = jnp.arange(first, first + self._sizes[argument], dtype=jnp.int32)
            drawn = np.asarray(self._draws[argument](np.asarray(seeds), numbers))
        batches = stream.read(drawn, split=split, seq_len=signature.seq_len)
        return {"batches": jax.device_put(batches)}

    def _draw(self, argument: str, seeds: jax.Array, numbers: jax.Array) -> jax.Array:
        """What is drawn for batches `numbers` [n] of members `seeds` [m]: [m, n, ...]."""
        stream, split = STREAMS[argument]
        signature = self._program.signature

        def one(seed, i):
            return self._program.dataset.stream.draw(
                self._program.batch_key(seed, stream, i),
                split=split,
                batch_size=signature.batch_size,
                seq_len=signature.seq_len,
            )

        of_member = jax.vmap(one, in_axes=(None, 0))
        return jax.vmap(of_member, in_axes=(0, None))(seeds, numbers)


def _on_host():
    """Computing on a CPU: behind the chunk at work on an accelerator it would wait."""
    try:
        return jax.default_device(jax.local_devices(backend="cpu")[0])
    except RuntimeError:  # JAX_PLATFORMS leaves it out: the numbers are the same
        return contextlib.nullcontext()
