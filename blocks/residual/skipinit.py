"""SkipInit: one learned factor on every branch, zero at first."""

from blocks.checks import check_finite
from blocks.residual.add import Add
from blocks.residual.factor import Factor
from blocks.residual.learned import learned_factor
from blocks.site import Site


class SkipInit(Add):
    """y = post_norm(x + branch_scale * branch), one factor per branch.

    At scale_init = 0 a block without norms is the identity, and the gradient of every
    weight inside a branch is exactly zero: in the first step the factors alone move.

    Parameters (float32), role in brackets:
        branch_scale  [1]  init `scale_init`  [scale]

    Source: arXiv 2002.10444 section 4. The paper has it in place of normalization.
    """

    traced = ("scale_init",)

    @staticmethod
    def check(*, scale_init: float = 0.0) -> None:
        check_finite(scale_init=scale_init)

    def __init__(self, *, scale_init: float = 0.0):
        self.scale_init = scale_init

    def factors(self, d_model: int, site: Site) -> tuple[Factor, Factor]:
        del d_model, site
        return 1.0, learned_factor(1, self.scale_init)
