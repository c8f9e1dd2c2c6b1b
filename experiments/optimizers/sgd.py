"""SGD with momentum and decoupled weight decay."""

import optax

from blocks.keywords import with_keywords_of
from experiments.optimizers import common
from experiments.optimizers.one_rule import OneRule


class SGD(OneRule):
    """Gradient descent with heavy-ball or Nesterov momentum.

        g <- g * min(1, clip_norm / ||g||)             over all parameters
        m <- momentum m + g
        u = m,  or  g + momentum m  with nesterov
        p <- p - rate (u + weight_decay p)             rate = learning_rate * schedule

    m has no factor 1 - momentum, so a steady gradient moves p by
    rate / (1 - momentum) per step. Decay is decoupled: it does not enter m, and
    reaches the roles that have one (`roles`). State and arithmetic in float32, or float64
    for float64 parameters.

    Args:
        learning_rate: peak rate.
        momentum: decay per step of m; 0 is plain gradient descent.
        nesterov: look one step ahead. Changes the program, so it is not traced.
        weight_decay: per unit of learning rate.
        the others: of `OneRule`.

    Source: momentum as torch.optim.SGD without dampening and optax.trace.
    Departure: torch's weight decay is an L2 term inside the gradient, here decoupled.
    """

    traced = (*OneRule.traced, "momentum")

    @staticmethod
    @with_keywords_of(OneRule.check)
    def check(
        *,
        learning_rate: float = 0.1,
        momentum: float = 0.9,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        **others,
    ) -> None:
        """Refuses values before anything is traced or compiled."""
        del nesterov
        OneRule.check(learning_rate=learning_rate, weight_decay=weight_decay, **others)
        common.check_decay_rate(momentum=momentum)

    @with_keywords_of(OneRule.__init__)
    def __init__(
        self,
        *,
        learning_rate: float = 0.1,
        momentum: float = 0.9,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        **others,
    ):
        super().__init__(
            learning_rate=learning_rate, weight_decay=weight_decay, **others
        )
        self.momentum = momentum
        self.nesterov = nesterov

    def rule(self, number: common.Number, specs) -> optax.GradientTransformation:
        """`optax.trace` with these numbers."""
        del specs  # every parameter alike
        return optax.trace(number(self.momentum), nesterov=self.nesterov)
