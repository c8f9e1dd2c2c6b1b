"""Lion: the sign of a momentum."""

import optax

from blocks.keywords import with_keywords_of
from experiments.optimizers import common
from experiments.optimizers.one_rule import OneRule


class Lion(OneRule):
    """Steps of one size in every coordinate, with weight decay by role.

        g <- g * min(1, clip_norm / ||g||)             over all parameters
        u = sign(b1 m + (1 - b1) g)
        m <- b2 m + (1 - b2) g                         after u
        p <- p - rate (u + weight_decay p)             rate = learning_rate * schedule

    One average instead of Adam's two. |u| is 1 (0 where the momentum is), about 3 to 10
    times the size of Adam's update: the rate is that much lower and the decay that much
    higher than under AdamW, so that rate * decay stays. Decay, rate and clip may differ
    by role (`Roles`). State and arithmetic in float32, or float64 for float64
    parameters; the update has the dtype of the parameter.

    Args:
        learning_rate: peak rate.
        b1: share of the past in the sign.
        b2: decay per step of the average m.
        weight_decay: per unit of learning rate, times the decay of the role.
        clip_norm: largest global gradient norm; None does not clip. The step has one
            size anyway; a clipped gradient weighs less in m.
        roles: factors on rate and decay, and clips, by role; None is `roles.STANDARD`.

    Source: arXiv 2302.06675 algorithm 2 with its betas, as optax has it. Rate and decay
    put rate * decay at that of `AdamW`.
    """

    traced = (*OneRule.traced, "b1", "b2")

    @staticmethod
    @with_keywords_of(OneRule.check)
    def check(
        *,
        learning_rate: float = 3e-4,
        b1: float = 0.9,
        b2: float = 0.99,
        weight_decay: float = 0.3,
        **others,
    ) -> None:
        """Refuses values before anything is traced or compiled."""
        OneRule.check(learning_rate=learning_rate, weight_decay=weight_decay, **others)
        common.check_decay_rate(b1=b1, b2=b2)

    @with_keywords_of(OneRule.__init__)
    def __init__(
        self,
        *,
        learning_rate: float = 3e-4,
        b1: float = 0.9,
        b2: float = 0.99,
        weight_decay: float = 0.3,
        **others,
    ):
        super().__init__(
            learning_rate=learning_rate, weight_decay=weight_decay, **others
        )
        self.b1 = b1
        self.b2 = b2

    def rule(self, number: common.Number, specs) -> optax.GradientTransformation:
        """`optax.scale_by_lion` with these numbers."""
        del specs  # every parameter alike
        return optax.scale_by_lion(number(self.b1), number(self.b2))
