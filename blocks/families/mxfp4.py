"""Tensors in blocks of 4-bit numbers (MXFP4), as published gpt-oss files hold experts.

A tensor `x` is two in the file, of bytes: `x_blocks` and `x_scales`. Here each expert of
it is a tensor `x.0`, `x.1`, ... of ordinary numbers, made when it is read.
"""

import dataclasses

import jax.numpy as jnp
import numpy as np

from blocks.families.fields import FamilyError

BLOCKS, SCALES = "_blocks", "_scales"
PACKED = 32  # numbers that have a scale together: 16 bytes

# E2M1: sign, two bits of exponent of bias 1, one of mantissa; 0 and 1 are subnormal.
_POSITIVE = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
VALUES = np.array([*_POSITIVE, *(-x for x in _POSITIVE)], np.float32)
# E8M0: two to the power of the byte - 127, all of it exponent; 255 is no number.
FACTORS = np.append(np.ldexp(np.float32(1), np.arange(255) - 127), np.float32("nan"))


def decoded(blocks: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """The numbers of blocks [..., n, 16] of scales [..., n]: float32 [..., 32 n].

    A byte holds two of them, the first in its lower half. The products are exact, in
    bfloat16 as well: no number has more than two significant bits.
    """
    numbers = np.empty((*blocks.shape[:-1], PACKED), np.float32)
    numbers[..., 0::2] = VALUES[blocks & 15]
    numbers[..., 1::2] = VALUES[blocks >> 4]
    numbers *= FACTORS[scales][..., None]
    return numbers.reshape(*blocks.shape[:-2], -1)


@dataclasses.dataclass(frozen=True)
class Expert:
    """One expert [in, out] of a tensor that is held as blocks [experts, out, n, 16]."""

    name: str
    number: int


class Unpacked:
    """The tensors of `blocks.families.files.Files`, those in blocks by their experts.

    names, shape, dtype, read, let_go and source as there.

    Raises:
        FamilyError: blocks without scales or the reverse, or of another type or shape.
    """

    def __init__(self, files):
        self.files, self.source = files, files.source
        self.names = dict(files.names)
        self._experts: dict[str, Expert] = {}
        for name in files.names:
            if name.endswith(BLOCKS) and self._is_packed(name):
                self._take_apart(name.removesuffix(BLOCKS))
            elif name.endswith(SCALES):
                self._is_packed(name)

    def shape(self, name: str) -> tuple[int, ...]:
        if name not in self._experts:
            return self.files.shape(name)
        _, width, n, _ = self.files.shape(self._experts[name].name + BLOCKS)
        return n * PACKED, width

    def dtype(self, name: str) -> np.dtype:
        if name not in self._experts:
            return self.files.dtype(name)
        return np.dtype(jnp.bfloat16)

    def read(self, name: str) -> np.ndarray:
        """A tensor; of one in blocks only an expert is ever in memory."""
        if name not in self._experts:
            return self.files.read(name)
        expert = self._experts[name]
        blocks, scales = (
            self.files.read(expert.name + part)[expert.number]
            for part in (BLOCKS, SCALES)
        )
        return decoded(blocks, scales).T.astype(jnp.bfloat16)

    def let_go(self) -> None:
        """As that of the files."""
        self.files.let_go()

    def _is_packed(self, name: str) -> bool:
        """Whether a tensor is half of a pair; refuses one that lacks the other half."""
        halves = {BLOCKS: SCALES, SCALES: BLOCKS}
        end = BLOCKS if name.endswith(BLOCKS) else SCALES
        other = name.removesuffix(end) + halves[end]
        if other in self.files.names:
            return True
        if self.files.dtype(name) == np.uint8:
            raise FamilyError(f"{self.source}: {name}: expected {other} beside it")
        return False

    def _take_apart(self, name: str) -> None:
        blocks, scales = name + BLOCKS, name + SCALES
        for half in (blocks, scales):
            if self.files.dtype(half) != np.uint8:
                raise FamilyError(
                    f"{self.source}: {half}: expected bytes (uint8), got "
                    f"{self.files.dtype(half)}"
                )
        shape, of_scales = self.files.shape(blocks), self.files.shape(scales)
        if len(shape) != 4 or shape[-1] != PACKED // 2:
            raise FamilyError(
                f"{self.source}: {blocks}: expected [experts, out, blocks, "
                f"{PACKED // 2}], got {list(shape)}"
            )
        if of_scales != shape[:-1]:
            raise FamilyError(
                f"{self.source}: {scales}: expected {list(shape[:-1])} as its blocks "
                f"have, got {list(of_scales)}"
            )
        path = self.names.pop(blocks)
        del self.names[scales]
        for number in range(shape[0]):
            self._experts[f"{name}.{number}"] = Expert(name, number)
            self.names[f"{name}.{number}"] = path
