"""AdamW: Adam with decoupled weight decay."""

import optax

from blocks.keywords import with_keywords_of
from experiments.optimizers import common
from experiments.optimizers.one_rule import OneRule


class AdamW(OneRule):
    """Adam with weight decay by role: on matrices and head, unless `roles` says else.

        g <- g * min(1, clip_norm / ||g||)             over all parameters
        m <- b1 m + (1 - b1) g          v <- b2 v + (1 - b2) g^2
        u = (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)
        p <- p - rate (u + weight_decay p)             rate = learning_rate * schedule

    Decay is decoupled, multiplied by the rate, and taken from p before the step. Rate and
    decay of a parameter are multiplied by those of its role (`roles`).
    State and arithmetic in float32, or float64 for float64 parameters; the update has
    the dtype of the parameter. A zero gradient gives u = 0.

    Args:
        learning_rate: peak rate.
        b1, b2: decay per step of the averages of g and g^2.
        eps: added to the root, outside it.
        weight_decay: per unit of learning rate.
        the others: of `OneRule`.

    Source: arXiv 1711.05101 algorithm 2 with its alpha = 1 and lambda times the
    learning rate, as torch and optax have it. b2 and decay of language-model practice.
    """

    traced = (*OneRule.traced, "b1", "b2", "eps")

    @staticmethod
    @with_keywords_of(OneRule.check)
    def check(
        *,
        learning_rate: float = 1e-3,
        b1: float = 0.9,
        b2: float = 0.95,
        eps: float = 1e-8,
        weight_decay: float = 0.1,
        **others,
    ) -> None:
        """Refuses values before anything is traced or compiled."""
        OneRule.check(learning_rate=learning_rate, weight_decay=weight_decay, **others)
        common.check_decay_rate(b1=b1, b2=b2)
        common.check_eps(eps=eps)

    @with_keywords_of(OneRule.__init__)
    def __init__(
        self,
        *,
        learning_rate: float = 1e-3,
        b1: float = 0.9,
        b2: float = 0.95,
        eps: float = 1e-8,
        weight_decay: float = 0.1,
        **others,
    ):
        super().__init__(
            learning_rate=learning_rate, weight_decay=weight_decay, **others
        )
        self.b1 = b1
        self.b2 = b2
        self.eps = eps

    def rule(self, number: common.Number, specs) -> optax.GradientTransformation:
        """`optax.scale_by_adam` with these numbers."""
        del specs  # every parameter alike
        return optax.scale_by_adam(number(self.b1), number(self.b2), number(self.eps))
