"""ResScale: a learned factor on the stream that passes the feed-forward."""

from blocks.residual.add import Add
from blocks.residual.factor import Factor
from blocks.residual.learned import learned_factor
from blocks.site import Site


class ResScale(Add):
    """y = post_norm(skip * x + ffn(x)), one factor per feature; attention adds plainly.

    Parameters (float32), role in brackets:
        skip  [d_model]  init 1  [scale]   at the feed-forward only

    Source: arXiv 2110.09456 section 2 (NormFormer, the optional part).
    """

    traced = ()

    @staticmethod
    def check() -> None:
        """There is nothing to set."""

    def __init__(self):
        super().__init__()

    def factors(self, d_model: int, site: Site) -> tuple[Factor, Factor]:
        return (learned_factor(d_model, 1.0) if site.name == "ffn" else 1.0), 1.0
