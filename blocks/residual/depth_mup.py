"""Depth-muP and CompleteP: branches that shrink with the depth of the model."""

from blocks.checks import check_finite, check_not_negative, check_sizes
from blocks.residual.add import Add
from blocks.residual.factor import Factor, of_depth
from blocks.site import Site


class DepthMuP(Add):
    """y = post_norm(x + branch_scale * (n_layers / base_layers)^(-power) * branch).

    power 1/2 is depth-muP, 1 is CompleteP; base_layers is the depth at which the rest
    of the settings was tuned. branch_scale 1.4 with power 1/2 and base_layers 1 is the
    `scale_depth` of MiniCPM.

    The learning rates, Adam's eps and the initial values that belong to these
    parametrizations are the optimizer's and the initializer's. Do not add an initial
    1 / sqrt(2 n_layers) on output kernels.

    Source: arXiv 2310.02244, arXiv 2505.01618; EleutherAI/nanoGPT-mup branch completep.
    """

    traced = ()

    @staticmethod
    def check(
        *, power: float = 0.5, base_layers: int = 1, branch_scale: float = 1.0
    ) -> None:
        check_not_negative(power=power)
        check_sizes(base_layers=base_layers)
        check_finite(branch_scale=branch_scale)

    def __init__(
        self, *, power: float = 0.5, base_layers: int = 1, branch_scale: float = 1.0
    ):
        self.power = power
        self.base_layers = base_layers
        self.branch_scale = branch_scale

    def factors(self, d_model: int, site: Site) -> tuple[Factor, Factor]:
        del d_model

        def factor(n):
            return self.branch_scale * (n / self.base_layers) ** -self.power

        return 1.0, of_depth(factor, site.n_layers)
