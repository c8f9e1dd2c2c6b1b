"""What torch draws on a CPU, in NumPy: torch itself is not needed to repeat a recipe.

The generator is the Mersenne twister, seeded as NumPy's RandomState is. A float is the
low 24 bits of one 32-bit number; a normal array of at least 16 entries is filled with
such floats, and every 16 of them become 8 cosines and 8 sines (Box-Muller).

Source: pytorch 2.13.0 aten/src/ATen/core/TransformationHelper.h (uniform_real),
aten/src/ATen/native/cpu/DistributionTemplates.h (normal_fill_16).
"""

import math

import numpy as np


class TorchDraws:
    """The stream of numbers after `torch.manual_seed(seed)`; float64 values of float32
    draws, equal to torch's to about 1e-7."""

    def __init__(self, seed: int):
        self.state = np.random.RandomState(seed)

    def unit(self, n: int) -> np.ndarray:
        bits = self.state.randint(0, 2**32, size=n, dtype=np.uint32)
        return (bits & (2**24 - 1)) / 2**24

    def uniform(self, shape, bound: float) -> np.ndarray:
        """tensor.uniform_(-bound, bound)."""
        return ((2 * self.unit(math.prod(shape)) - 1) * bound).reshape(shape)

    def normal(self, shape, std: float = 1.0) -> np.ndarray:
        """tensor.normal_(0, std), or torch.randn; a multiple of 16 entries."""
        n = math.prod(shape)
        assert n % 16 == 0, "other sizes end in another way"
        u = self.unit(n).reshape(-1, 2, 8)
        radius, angle = np.sqrt(-2 * np.log(1 - u[:, 0])), 2 * np.pi * u[:, 1]
        pairs = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
        return std * pairs.reshape(shape)

    def linear(self, d_in: int, d_out: int) -> tuple[np.ndarray, np.ndarray]:
        """torch.nn.Linear(d_in, d_out): weight [d_out, d_in] and bias [d_out]."""
        bound = 1 / math.sqrt(d_in)
        return self.uniform((d_out, d_in), bound), self.uniform((d_out,), bound)
