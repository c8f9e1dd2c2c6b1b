"""AdamW: Adam with decoupled weight decay."""

import optax

from blocks.parameters import ParamSpec
from experiments.optimizers import common
from experiments.optimizers.roles import STANDARD, Roles


class AdamW:
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
        clip_norm: largest global gradient norm; None does not clip.
        roles: factors on rate and decay, and clips, by role; None is `roles.STANDARD`.

    Source: arXiv 1711.05101 algorithm 2 with its alpha = 1 and lambda times the
    learning rate, as torch and optax have it. b2 and decay of language-model practice.
    """

    traced = ("learning_rate", "b1", "b2", "eps", "weight_decay", "clip_norm")

    @staticmethod
    def check(
        *,
        learning_rate: float = 1e-3,
        b1: float = 0.9,
        b2: float = 0.95,
        eps: float = 1e-8,
        weight_decay: float = 0.1,
        clip_norm: float | None = 1.0,
        roles: Roles | None = None,
    ) -> None:
        """Refuses values before anything is traced or compiled."""
        common.check_not_negative(
            learning_rate=learning_rate, weight_decay=weight_decay
        )
        common.check_decay_rate(b1=b1, b2=b2)
        common.check_eps(eps=eps)
        common.check_clip_norm(clip_norm)

    def __init__(
        self,
        *,
        learning_rate: float = 1e-3,
        b1: float = 0.9,
        b2: float = 0.95,
        eps: float = 1e-8,
        weight_decay: float = 0.1,
        clip_norm: float | None = 1.0,
        roles: Roles | None = None,
    ):
        self.learning_rate = learning_rate
        self.b1 = b1
        self.b2 = b2
        self.eps = eps
        self.weight_decay = weight_decay
        self.clip_norm = clip_norm
        self.roles = roles or STANDARD

    def groups(self, specs: dict[str, ParamSpec]) -> dict[str, str]:
        """Path -> "decay" or "no_decay"."""
        return common.groups_by_decay(self.roles, specs)

    def transform(
        self, specs: dict[str, ParamSpec], multiplier
    ) -> optax.GradientTransformation:
        """The update rule over flat dicts of the parameters of `specs`.

        Args:
            specs: what every parameter is.
            multiplier: the schedule, count of finished updates -> factor in [0, 1].
        """
        roles = self.roles

        def make(number):
            return optax.chain(
                common.clip(number, self.clip_norm, roles, specs),
                optax.scale_by_adam(number(self.b1), number(self.b2), number(self.eps)),
                common.decayed_weights(number, self.weight_decay, roles, specs),
                common.scale_by_rate(
                    number, self.learning_rate, multiplier, roles, specs
                ),
            )

        return common.in_wide_dtype(specs, make)
