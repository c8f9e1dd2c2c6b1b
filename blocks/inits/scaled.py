"""Initial values multiplied by what a residual scheme asks for."""

import dataclasses
from typing import Any

from blocks.site import Site


@dataclasses.dataclass(frozen=True)
class Scaled:
    """init.kernel(...) * residual.init_factor(use, site); biases as they are.

    DeepNorm, Sub-LN and Fixup belong to a residual scheme and change what a branch
    starts from; any initializer can be combined with them.
    """

    init: Any
    residual: Any
    site: Site

    def kernel(self, key, shape, use, *, layer, n_sublayers):
        kernel = self.init.kernel(key, shape, use, layer=layer, n_sublayers=n_sublayers)
        factor = self.residual.init_factor(use, self.site)
        # A factor that is one on the host leaves the program as it was.
        is_one = isinstance(factor, (int, float)) and factor == 1.0
        return kernel if is_one else (factor * kernel).astype(kernel.dtype)

    def bias(self, key, shape, fan_in):
        return self.init.bias(key, shape, fan_in)
