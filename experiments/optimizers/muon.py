"""Muon for hidden matrices, Adam for everything else."""

import optax

from blocks.keywords import with_keywords_of
from experiments.optimizers import common
from experiments.optimizers.hidden import HiddenMatrices
from experiments.optimizers.newton_schulz import QUINTIC, Polynomials
from experiments.optimizers.scale_by_muon import check_scale, scale_by_muon


class Muon(HiddenMatrices):
    """Orthogonalised momentum on the role matrix, Adam on all other roles.

        g <- g * min(1, clip_norm / ||g||)             over both groups together
        "muon":  p <- p - rate (s * orthogonal(H) + weight_decay p)
        "adam":  p <- p - adam_rate (adam(g) + adam_weight_decay p)      no Nesterov
        rate = learning_rate * schedule, adam_rate = adam_learning_rate * schedule

    H and s: `scale_by_muon`. Every layer and every kernel is orthogonalised by itself,
    so a stacked model trains as its layers would one by one. Decay is multiplied by the
    rate without s; outside matrices there is none unless `adam_weight_decay` is set.

    A rate means another step under each `scale`: for a square d x d kernel
    rate(rms0.2) = rate(keller) / (0.2 sqrt(d)). Choose one per study.

    Args:
        momentum: decay per step of the average of the gradients.
        nesterov: mix the gradient in once more. Not traced, nor are the next two.
        scale: "keller", "spectral" or "rms0.2".
        iteration: what orthogonalises; None is `newton_schulz.QUINTIC`.
        the others: of `HiddenMatrices`. The update of a matrix ignores the size of its
            gradient, but its momentum weighs large gradients more unless they are
            clipped.

    Source: KellerJordan/Muon muon.py, its auxiliary Adam included. Departure: decay is
    0.1 as in arXiv 2502.16982, where the reference has 0.
    """

    group = "muon"
    is_orthogonal = True  # updates have singular values near 1, before s
    traced = (*HiddenMatrices.traced, "momentum")

    @staticmethod
    @with_keywords_of(HiddenMatrices.check)
    def check(
        *,
        momentum: float = 0.95,
        nesterov: bool = True,
        scale: str = "keller",
        iteration: Polynomials | None = None,
        **others,
    ) -> None:
        """Refuses values before anything is traced or compiled."""
        del nesterov, iteration
        HiddenMatrices.check(**others)
        common.check_decay_rate(momentum=momentum)
        check_scale(scale)

    @with_keywords_of(HiddenMatrices.__init__)
    def __init__(
        self,
        *,
        momentum: float = 0.95,
        nesterov: bool = True,
        scale: str = "keller",
        iteration: Polynomials | None = None,
        **others,
    ):
        super().__init__(**others)
        self.momentum = momentum
        self.nesterov = nesterov
        self.scale = scale
        self.iteration = iteration or QUINTIC

    def matrix_rule(self, number: common.Number) -> optax.GradientTransformation:
        """`scale_by_muon` with these numbers."""
        return scale_by_muon(
            number(self.momentum),
            nesterov=self.nesterov,
            iteration=self.iteration,
            scale=self.scale,
        )
