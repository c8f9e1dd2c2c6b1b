"""SGD with momentum and decoupled weight decay."""

import optax

from blocks.parameters import ParamSpec
from experiments.optimizers import common


class SGD:
    """Gradient descent with heavy-ball or Nesterov momentum.

        g <- g * min(1, clip_norm / ||g||)             over all parameters
        m <- momentum m + g
        u = m,  or  g + momentum m  with nesterov
        p <- p - rate (u + weight_decay p)             rate = learning_rate * schedule

    m has no factor 1 - momentum, so a steady gradient moves p by
    rate / (1 - momentum) per step. Decay is decoupled: it does not enter m, and
    reaches the roles matrix and head only. State and arithmetic in float32, or float64
    for float64 parameters.

    Args:
        learning_rate: peak rate.
        momentum: decay per step of m; 0 is plain gradient descent.
        nesterov: look one step ahead. Changes the program, so it is not traced.
        weight_decay: per unit of learning rate.
        clip_norm: largest global gradient norm; None does not clip.

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
    ):
        self.learning_rate = learning_rate
        self.momentum = momentum
        self.nesterov = nesterov
        self.weight_decay = weight_decay
        self.clip_norm = clip_norm

    def groups(self, specs: dict[str, ParamSpec]) -> dict[str, str]:
        """Path -> "decay" or "no_decay"."""
        return common.decay_groups(specs)

    def transform(
        self, specs: dict[str, ParamSpec], multiplier
    ) -> optax.GradientTransformation:
        """The update rule over flat dicts of the parameters of `specs`.

        Args:
            specs: what every parameter is.
            multiplier: the schedule, count of finished updates -> factor in [0, 1].
        """
        groups = self.groups(specs)

        def make(number):
            return optax.chain(
                common.clip(number(self.clip_norm)),
                optax.trace(number(self.momentum), nesterov=self.nesterov),
                common.decayed_weights(number(self.weight_decay), groups),
                common.scale_by_rate(number(self.learning_rate), multiplier),
            )

        return common.in_wide_dtype(specs, make)
