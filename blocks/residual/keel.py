"""Keel: Post-LN whose skip grows with depth, around a Pre-LN branch."""

from blocks.checks import check_positive
from blocks.residual.add import Add
from blocks.residual.factor import Factor, of_depth
from blocks.site import Site


class Keel(Add):
    """y = post_norm(alpha * x + branch), alpha the number of sub-layers of the model.

    The norm in front of F is the placement's (in_norm). With alpha = 1 and no in_norm
    this is Post-LN.

    Source: arXiv 2601.19895. The alpha of the order of the number of sub-layers is as
    the paper is commonly quoted; what it does in the first block was not verified, and
    here the first block is like the others.
    """

    traced = ()
    needs_post_norm = True  # without, the stream grows as alpha to the depth

    @staticmethod
    def check(*, alpha: float | None = None) -> None:
        if alpha is not None:
            check_positive(alpha=alpha)

    def __init__(self, *, alpha: float | None = None):
        """Args:
        alpha: factor on the stream; None is the number of sub-layers.
        """
        self.check(alpha=alpha)
        self.alpha = alpha

    def factors(self, d_model: int, site: Site) -> tuple[Factor, Factor]:
        del d_model
        if self.alpha is not None:
            return self.alpha, 1.0
        return of_depth(lambda n: 1.0 * n * site.per_block, site.n_layers), 1.0
