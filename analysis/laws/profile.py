"""How a quantity changes over the layers of networks of one depth."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from analysis.laws.data import checked
from analysis.laws.power import kind_of, max_residual, slope_interval
from analysis.stats import Interval, geometric_interval


@dataclass(frozen=True)
class ProfileLaw:
    """Fits of ln g(l) over the blocks l of networks of one depth.

    Attributes:
        exponent: slope on ln l, mean over seeds with its t interval (power law).
        rate: slope on l, per block (exponential).
        first_over_last: geometric mean over seeds of g(first) / g(last), of all blocks.
        max_residual_power, max_residual_exponential: largest |ln g - fit| of the
            geometric means.
        kind: "flat", "power" or "exponential", as `laws.power.PowerLaw`.
        blocks: first and last l of the fit.
    """

    exponent: Interval
    rate: Interval
    first_over_last: Interval
    max_residual_power: float
    max_residual_exponential: float
    kind: str
    blocks: tuple[int, int]


def profile_law(
    values_by_seed: Mapping[int, Sequence[float]],
    *,
    from_block: int = 1,
    level: float = 0.95,
) -> ProfileLaw:
    """Fits the layers of one depth.

    Args:
        values_by_seed: seed -> g of block 1, 2, ..., L.
        from_block: leave out what is nearer to the input. 1 / sqrt(s0^2 + v l) is no
            power of l there.

    Raises:
        ValueError: fewer than two blocks; lists of different lengths; a value that is
            not positive and finite.
    """
    if not values_by_seed:
        raise ValueError("a profile needs at least one seed, got none")
    n_layers = len(next(iter(values_by_seed.values())))
    if not 1 <= from_block < n_layers:
        raise ValueError(
            f"a profile of {n_layers} blocks cannot start at block {from_block}"
        )
    blocks, logs = checked(range(1, n_layers + 1), values_by_seed)
    x = blocks[from_block - 1 :]
    fitted = {s: values[from_block - 1 :] for s, values in values_by_seed.items()}
    means = logs[:, from_block - 1 :].mean(axis=0)
    exponent = slope_interval(np.log(x), fitted, level=level)
    power, exponential = max_residual(np.log(x), means), max_residual(x, means)
    return ProfileLaw(
        exponent=exponent,
        rate=slope_interval(x, fitted, level=level),
        first_over_last=geometric_interval(
            [values[0] / values[-1] for values in values_by_seed.values()], level=level
        ),
        max_residual_power=power,
        max_residual_exponential=exponential,
        kind=kind_of(exponent.mean, power, exponential, len(x)),
        blocks=(from_block, n_layers),
    )
