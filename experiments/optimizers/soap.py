"""SOAP for hidden matrices, Adam for everything else."""

import optax

from blocks.keywords import with_keywords_of
from experiments.optimizers import common
from experiments.optimizers.hidden import HiddenMatrices
from experiments.optimizers.kronecker import check_sides
from experiments.optimizers.scale_by_soap import scale_by_soap


class SOAP(HiddenMatrices):
    """Adam in the eigenbases of Shampoo on the role matrix, Adam on all other roles.

        g <- g * min(1, clip_norm / ||g||)             over both groups together
        "soap":  p <- p - rate (Q_L N Q_R^T + weight_decay p)    N: Adam of Q_L^T g Q_R
        "adam":  p <- p - adam_rate (adam(g) + adam_weight_decay p)
        rate = learning_rate * schedule, adam_rate = adam_learning_rate * schedule

    The rule: `scale_by_soap`. Bases are of a single layer or expert, so a stacked model
    trains as its layers would one by one. Its first update only learns the bases: it
    moves matrices by their decay alone. The rate has the unit of Adam's.

    Costs per kernel and step about eight products with its bases, and every
    `precondition_every` steps a QR of each side; state 2 m n + 2 m^2 + 2 n^2.

    Args:
        learning_rate: peak rate of the matrices.
        b1, b2, eps: Adam's, in the eigenbases; eps stands before the bias correction.
        shampoo_beta: decay per step of the averages of g g^T and g^T g.
        precondition_every: updates between two refreshes of the bases. Changes the
            program, so it is not traced, nor is the next.
        max_dim: a longer side is left as it is; with both, the kernel gets plain Adam.
        the others: of `HiddenMatrices`.

    Source: arXiv 2409.11321; nikhilvyas/SOAP soap.py, without merged dimensions.
    Departures: decay is taken from p before the step and acts from the first update on,
    and is 0.1 where the reference has 0.01; embedding and head go to Adam by role.
    """

    group = "soap"
    traced = (*HiddenMatrices.traced, "b1", "b2", "eps", "shampoo_beta")

    @staticmethod
    @with_keywords_of(HiddenMatrices.check)
    def check(
        *,
        learning_rate: float = 3e-3,
        b1: float = 0.95,
        b2: float = 0.95,
        eps: float = 1e-8,
        shampoo_beta: float = 0.95,
        precondition_every: int = 10,
        max_dim: int = 10000,
        **others,
    ) -> None:
        """Refuses values before anything is traced or compiled."""
        HiddenMatrices.check(learning_rate=learning_rate, **others)
        common.check_decay_rate(b1=b1, b2=b2, shampoo_beta=shampoo_beta)
        common.check_eps(eps=eps)
        check_sides(precondition_every=precondition_every, max_dim=max_dim)

    @with_keywords_of(HiddenMatrices.__init__)
    def __init__(
        self,
        *,
        learning_rate: float = 3e-3,
        b1: float = 0.95,
        b2: float = 0.95,
        eps: float = 1e-8,
        shampoo_beta: float = 0.95,
        precondition_every: int = 10,
        max_dim: int = 10000,
        **others,
    ):
        super().__init__(learning_rate=learning_rate, **others)
        self.b1 = b1
        self.b2 = b2
        self.eps = eps
        self.shampoo_beta = shampoo_beta
        self.precondition_every = precondition_every
        self.max_dim = max_dim

    def matrix_rule(self, number: common.Number) -> optax.GradientTransformation:
        """`scale_by_soap` with these numbers."""
        return scale_by_soap(
            number(self.b1),
            number(self.b2),
            eps=number(self.eps),
            shampoo_beta=number(self.shampoo_beta),
            precondition_every=self.precondition_every,
            max_dim=self.max_dim,
        )
