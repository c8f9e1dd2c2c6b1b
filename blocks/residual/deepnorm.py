"""DeepNorm: Post-LN with a strong skip and small initial branches."""

import functools

from blocks.residual.add import Add
from blocks.residual.constants import check_side, deepnorm, is_on_the_value_path
from blocks.residual.factor import Factor, of_depth
from blocks.site import Site


class DeepNorm(Add):
    """y = post_norm(alpha * x + branch); initial v, o and feed-forward kernels * beta.

        only       alpha (2 n)^(1/4)            beta (8 n)^(-1/4)
        encoder    alpha 0.81 (n^4 m)^(1/16)    beta 0.87 (n^4 m)^(-1/16)
        decoder    alpha (3 n)^(1/4)            beta (12 n)^(-1/4)

    n blocks here, m on the other side of an encoder-decoder. Both are constants; q, k,
    the embedding and the head start as the initializer has them, which in the paper is
    Xavier's (`init=xavier`).

    Source: arXiv 2203.00555 figure 2 and table 1. (microsoft/torchscale multiplies the
    encoder of an encoder-decoder by 1.15 = 1 / 0.87; the paper is followed.)
    Departure: the paper has no gated feed-forward; here its gate is scaled as well.
    """

    traced = ()
    needs_post_norm = True  # without, the stream grows as alpha to the depth

    @staticmethod
    def check(*, side: str = "only", n_other_layers: int | None = None) -> None:
        check_side(side, n_other_layers)

    def __init__(self, *, side: str = "only", n_other_layers: int | None = None):
        """Args:
        side: one of blocks.residual.constants.SIDES.
        n_other_layers: blocks on the other side; None is as many as here.
        """
        self.check(side=side, n_other_layers=n_other_layers)
        self.constants = functools.partial(deepnorm, side=side, n_other=n_other_layers)

    def factors(self, d_model: int, site: Site) -> tuple[Factor, Factor]:
        del d_model
        return of_depth(lambda n: self.constants(n)[0], site.n_layers), 1.0

    def init_factor(self, use: str, site: Site):
        if not is_on_the_value_path(use, site):
            return 1.0
        return self.constants(site.n_layers)[1]
