"""LayerScale: a learned factor on every feature of a branch."""

from blocks.checks import check_finite
from blocks.residual.add import Add
from blocks.residual.factor import Factor
from blocks.residual.learned import learned_factor
from blocks.site import Site


class LayerScale(Add):
    """y = post_norm(x + branch_scale * branch), one factor per feature.

    Parameters (float32), role in brackets:
        branch_scale  [d_model]  init `scale_init`  [scale]

    The product and the sum are in float32 or wider, rounded once.

    Source: arXiv 2103.17239 section 2 (CaiT): scale_init 0.1 up to 18 blocks, 1e-5 at
    24, 1e-6 deeper.
    """

    traced = ("scale_init",)

    @staticmethod
    def check(*, scale_init: float = 0.1) -> None:
        check_finite(scale_init=scale_init)

    def __init__(self, *, scale_init: float = 0.1):
        self.scale_init = scale_init

    def factors(self, d_model: int, site: Site) -> tuple[Factor, Factor]:
        del site
        return 1.0, learned_factor(d_model, self.scale_init)
