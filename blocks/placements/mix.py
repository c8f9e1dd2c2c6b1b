"""Mix-LN: Post-LN in the first blocks, Pre-LN in the others."""

import dataclasses
import math

from blocks.placement import POST, PRE, Placement


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mix:
    """Blocks 0 .. floor(fraction * n_layers) - 1 are Post-LN, the others Pre-LN.

    A model of few layers may have no Post-LN block: fraction 1/4 needs four.

    Source: arXiv 2412.13795 section 3; pixeli99/MixLN (final norm kept).
    """

    varies = True
    parallel = False

    fraction: float = 0.25
    embedding_norm: bool = False
    final_norm: bool = True

    @staticmethod
    def check(*, fraction: float = 0.25, **_) -> None:
        if not 0 <= fraction <= 1:
            raise ValueError(f"fraction must be from 0 to 1, got {fraction}")

    def at(self, site: str, layer: int, n_layers: int) -> Placement:
        """The placement of one sub-layer of block `layer`."""
        del site
        return POST if layer < math.floor(self.fraction * n_layers) else PRE
