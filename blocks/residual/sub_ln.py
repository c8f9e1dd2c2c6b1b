"""Sub-LN (Magneto): plain addition, and larger initial values of the branches."""

from blocks.residual.add import Add
from blocks.residual.constants import check_side, is_on_the_value_path, sub_ln
from blocks.site import Site


class SubLN(Add):
    """y = post_norm(x + branch); initial v, o and feed-forward kernels * gamma.

        only       gamma sqrt(ln(2 n))
        encoder    gamma sqrt(ln(3 m) ln(2 n) / 3)
        decoder    gamma sqrt(ln(3 n))

    n blocks here, m on the other side of an encoder-decoder. q and k are not scaled.
    The norms of Sub-LN (before F, and inside F before its output projection) are a
    matter of the placement.

    Source: arXiv 2210.06423 figure 2; microsoft/torchscale.
    """

    traced = ()

    @staticmethod
    def check(*, side: str = "only", n_other_layers: int | None = None) -> None:
        check_side(side, n_other_layers)

    def __init__(self, *, side: str = "only", n_other_layers: int | None = None):
        """Args:
        side: one of blocks.residual.constants.SIDES.
        n_other_layers: blocks on the other side; None is as many as here.
        """
        self.check(side=side, n_other_layers=n_other_layers)
        super().__init__()
        self.side = side
        self.n_other_layers = n_other_layers

    def init_factor(self, use: str, site: Site):
        if not is_on_the_value_path(use, site):
            return 1.0
        return sub_ln(site.n_layers, self.side, self.n_other_layers)
