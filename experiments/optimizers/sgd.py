"""SGD with momentum and decoupled weight decay."""

import optax

from blocks.parameters import ParamSpec
from experiments.optimizers import common
from experiments.optimizers.roles import STANDARD, Roles


class SGD:
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
        clip_norm: largest global gradient norm; None does not clip.
        roles: factors on rate and decay, and clips, by role; None is `roles.STANDARD`.

    Source: momentum as torch.optim.SGD without dampening and optax.trace.
    Departure: torch's weight decay is an L2 term inside the gradient, here decoupled.
    """

    traced = ("learning_rate", "momentum", "weight_decay", "clip_norm")

    @staticmethod
    def check(
        *,
        learning_rate: float = 0.1,
        momentum: float = 0.9,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        clip_norm: float | None = 1.0,
        roles: Roles | None = None,
    ) -> None:
        """Refuses values before anything is traced or compiled."""
        del nesterov
        common.check_not_negative(
            learning_rate=learning_rate, weight_decay=weight_decay
        )
        common.check_decay_rate(momentum=momentum)
        common.check_clip_norm(clip_norm)

    def __init__(
        self,
        *,
        learning_rate: float = 0.1,
        momentum: float = 0.9,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        clip_norm: float | None = 1.0,
        roles: Roles | None = None,
    ):
        self.learning_rate = learning_rate
        self.momentum = momentum
        self.nesterov = nesterov
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
                optax.trace(number(self.momentum), nesterov=self.nesterov),
                common.decayed_weights(number, self.weight_decay, roles, specs),
                common.scale_by_rate(
                    number, self.learning_rate, multiplier, roles, specs
                ),
            )

        return common.in_wide_dtype(specs, make)
