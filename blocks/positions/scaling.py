"""How rotary frequencies are slowed down for sequences longer than trained on.

A scaling maps the frequencies [d_rotary / 2] (radians per token, float64, on the host)
to slower ones, and has a `magnitude` that multiplies cosines and sines.
Source of all three: transformers 5.24.0 modeling_rope_utils.py.
"""

import dataclasses
import math

import numpy as np

from blocks.checks import check_positive


def _check_given(**values: float | None) -> None:
    check_positive(**{name: x for name, x in values.items() if x is not None})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Interpolation:
    """Every frequency divided by `factor` (position interpolation, arXiv 2306.15595).

    Gemma 3 from 4B up uses 8 in its global layers.
    """

    factor: float = 8.0

    magnitude = 1.0

    @staticmethod
    def check(*, factor: float = 8.0) -> None:
        """Raises ValueError for a factor that is not positive."""
        _check_given(factor=factor)

    def __post_init__(self):
        self.check(factor=self.factor)

    def __call__(self, frequency: np.ndarray, *, base: float) -> np.ndarray:
        del base
        return frequency / self.factor


@dataclasses.dataclass(frozen=True, kw_only=True)
class Llama3:
    """Slow frequencies divided by `factor`, fast ones kept, a blend between.

        turns      = original_len * frequency / (2 pi)     of the trained context
        keep       = clip((turns - low) / (high - low), 0, 1)
        frequency' = keep * frequency + (1 - keep) * frequency / factor

    Llama 3.1: factor 8 of 8192 tokens; Llama 3.2: 32.
    """

    factor: float = 8.0
    low: float = 1.0
    high: float = 4.0
    original_len: int = 8192

    magnitude = 1.0

    @staticmethod
    def check(
        *,
        factor: float = 8.0,
        low: float = 1.0,
        high: float = 4.0,
        original_len: int = 8192,
    ) -> None:
        """Raises ValueError for values that are not positive, or low >= high."""
        _check_given(factor=factor, low=low, high=high, original_len=original_len)
        if low >= high:
            raise ValueError(f"low must be below high, got low={low} and high={high}")

    def __post_init__(self):
        self.check(**dataclasses.asdict(self))

    def __call__(self, frequency: np.ndarray, *, base: float) -> np.ndarray:
        del base
        turns = self.original_len * frequency / (2 * np.pi)
        keep = np.clip((turns - self.low) / (self.high - self.low), 0, 1)
        return keep * frequency + (1 - keep) * frequency / self.factor


@dataclasses.dataclass(frozen=True, kw_only=True)
class Yarn:
    """YaRN: a blend over the index of the pair, and larger cosines and sines.

        index(n)   = d_rotary ln(original_len / (2 pi n)) / (2 ln base)
                     the pair that makes n turns in the trained context
        slow       = clip((i - index(beta_fast)) / (index(beta_slow) - index(beta_fast)),
                          0, 1)
        frequency' = slow * frequency / factor + (1 - slow) * frequency

    The two indices are rounded outwards if `truncate`, and kept within 0 and
    d_rotary - 1. Cosines and sines are multiplied by

        magnitude = attention_factor, or m(mscale) / m(mscale_all_dim), or m(1)
        m(s)      = 0.1 s ln(factor) + 1

    whichever is given first, so that scores of rotated features grow by its square.
    DeepSeek sets mscale = mscale_all_dim, which makes it 1, and multiplies all scores
    by `m(mscale_all_dim)` squared instead: the `scale` of its attention.

    Source: arXiv 2309.00071. gpt-oss: factor 32, original_len 4096, truncate false,
    base 150000; DeepSeek-V3: factor 40, original_len 4096, both mscale 1.
    """

    factor: float = 32.0
    original_len: int = 4096
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None

    @staticmethod
    def check(
        *,
        factor: float = 32.0,
        original_len: int = 4096,
        beta_fast: float = 32.0,
        beta_slow: float = 1.0,
        truncate: bool = True,
        attention_factor: float | None = None,
        mscale: float | None = None,
        mscale_all_dim: float | None = None,
    ) -> None:
        """Raises ValueError for values that are not positive, or a factor below 1."""
        _check_given(
            original_len=original_len,
            beta_fast=beta_fast,
            beta_slow=beta_slow,
            attention_factor=attention_factor,
            mscale=mscale,
            mscale_all_dim=mscale_all_dim,
        )
        if not (math.isfinite(factor) and factor >= 1):
            raise ValueError(f"factor must be finite and at least 1, got {factor}")
        if beta_fast < beta_slow:
            raise ValueError(
                "beta_fast must not be below beta_slow, "
                f"got beta_fast={beta_fast} and beta_slow={beta_slow}"
            )

    def __post_init__(self):
        self.check(**dataclasses.asdict(self))

    def m(self, s: float) -> float:
        """0.1 s ln(factor) + 1."""
        return 0.1 * s * math.log(self.factor) + 1

    @property
    def magnitude(self) -> float:
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale is not None and self.mscale_all_dim is not None:
            return self.m(self.mscale) / self.m(self.mscale_all_dim)
        return self.m(1.0)

    def __call__(self, frequency: np.ndarray, *, base: float) -> np.ndarray:
        d_rotary = 2 * len(frequency)

        def index(turns):
            longest = math.log(self.original_len / (2 * math.pi * turns))
            return d_rotary * longest / (2 * math.log(base))

        first, last = index(self.beta_fast), index(self.beta_slow)
        if self.truncate:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, d_rotary - 1)
        last = last + 0.001 if first == last else last  # a step, not 0 / 0
        slow = np.clip((np.arange(len(frequency)) - first) / (last - first), 0, 1)
        return slow * frequency / self.factor + (1 - slow) * frequency
