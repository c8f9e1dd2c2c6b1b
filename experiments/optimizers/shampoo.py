"""Shampoo for hidden matrices, Adam for everything else."""

import optax

from blocks.keywords import with_keywords_of
from experiments.optimizers import common
from experiments.optimizers.hidden import HiddenMatrices
from experiments.optimizers.kronecker import check_sides
from experiments.optimizers.scale_by_shampoo import scale_by_shampoo


class Shampoo(HiddenMatrices):
    """Momentum between inverse fourth roots on the role matrix, Adam on all other roles.

        g <- g * min(1, clip_norm / ||g||)             over both groups together
        "shampoo":  p <- p - rate (L^-1/4 m R^-1/4 + weight_decay p)
        "adam":     p <- p - adam_rate (adam(g) + adam_weight_decay p)
        rate = learning_rate * schedule, adam_rate = adam_learning_rate * schedule

    m, L, R: averages of g, g g^T and g^T g, see `scale_by_shampoo`. They are of a single
    layer or expert, so a stacked model trains as its layers would one by one. The first
    update is orthogonal: the rate has the unit of Muon's before its shape factor, and
    the size of the gradients does not matter.

    Args:
        learning_rate: peak rate of the matrices. A starting point, not tuned.
        b1: decay per step of the average of g.
        b2: of the averages of g g^T and g^T g.
        cutoff: eigenvalues below this share of the largest count as zero.
        precondition_every: updates between two computations of the roots; changes the
            program, so it is not traced, nor is the next. There is no grafting that
            would hold back stale roots: see `scale_by_shampoo` before raising it.
        max_dim: a longer side is left as it is, the other then takes the power -1/2.
        the others: of `HiddenMatrices`.

    Source: arXiv 1802.09568; with averages as in KellerJordan/modded-nanogpt track 3,
    where Shampoo without them is Muon without momentum.
    """

    group = "shampoo"
    traced = (*HiddenMatrices.traced, "b1", "b2", "cutoff")

    @staticmethod
    @with_keywords_of(HiddenMatrices.check)
    def check(
        *,
        b1: float = 0.9,
        b2: float = 0.95,
        cutoff: float = 1e-6,
        precondition_every: int = 1,
        max_dim: int = 10000,
        **others,
    ) -> None:
        """Refuses values before anything is traced or compiled."""
        HiddenMatrices.check(**others)
        common.check_decay_rate(b1=b1, b2=b2, cutoff=cutoff)
        check_sides(precondition_every=precondition_every, max_dim=max_dim)

    @with_keywords_of(HiddenMatrices.__init__)
    def __init__(
        self,
        *,
        b1: float = 0.9,
        b2: float = 0.95,
        cutoff: float = 1e-6,
        precondition_every: int = 1,
        max_dim: int = 10000,
        **others,
    ):
        super().__init__(**others)
        self.b1 = b1
        self.b2 = b2
        self.cutoff = cutoff
        self.precondition_every = precondition_every
        self.max_dim = max_dim

    def matrix_rule(self, number: common.Number) -> optax.GradientTransformation:
        """`scale_by_shampoo` with these numbers."""
        return scale_by_shampoo(
            number(self.b1),
            number(self.b2),
            cutoff=number(self.cutoff),
            precondition_every=self.precondition_every,
            max_dim=self.max_dim,
        )
