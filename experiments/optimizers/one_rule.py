"""Optimizers that have one rule for all parameters."""

import abc
from collections.abc import Callable

import optax

from blocks.parameters import ParamSpec
from experiments.optimizers import common
from experiments.optimizers.roles import STANDARD, Roles


class OneRule(abc.ABC):
    """One rule for all parameters, with rate and weight decay by role.

        g <- g * min(1, clip_norm / ||g||)             over all parameters
        p <- p - rate (rule(g) + weight_decay p)       rate = learning_rate * schedule

    Rate and decay of a parameter are multiplied by those of its role (`roles`); matrices
    and head decay, unless it says else. Decay is decoupled: it is multiplied by the rate,
    taken from p before the step, and the rule does not see it. A subclass has `rule` and
    takes these keywords by `with_keywords_of`. State and arithmetic in float32, or
    float64 for float64 parameters; the update has the dtype of the parameter.

    Args:
        learning_rate: peak rate.
        weight_decay: per unit of learning rate.
        clip_norm: largest global gradient norm; None does not clip.
        roles: factors on rate and decay, and clips, by role; None is `roles.STANDARD`.
    """

    traced = ("learning_rate", "weight_decay", "clip_norm")

    @staticmethod
    def check(
        *,
        learning_rate: float,
        weight_decay: float,
        clip_norm: float | None = 1.0,
        roles: Roles | None = None,
    ) -> None:
        """Refuses values before anything is traced or compiled."""
        common.check_not_negative(
            learning_rate=learning_rate, weight_decay=weight_decay
        )
        common.check_clip_norm(clip_norm)

    def __init__(
        self,
        *,
        learning_rate: float,
        weight_decay: float,
        clip_norm: float | None = 1.0,
        roles: Roles | None = None,
    ):
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.clip_norm = clip_norm
        self.roles = roles or STANDARD

    @abc.abstractmethod
    def rule(
        self, number: common.Number, specs: dict[str, ParamSpec]
    ) -> optax.GradientTransformation:
        """Clipped gradients -> what decay is added to.

        `number(x)` casts a hyperparameter to the dtype of the step.
        """

    def groups(self, specs: dict[str, ParamSpec]) -> dict[str, str]:
        """Path -> "decay" or "no_decay", as the parameter's role has a decay or none."""
        return {
            path: "no_decay" if self.roles.of(spec).decay is None else "decay"
            for path, spec in specs.items()
        }

    def transform(
        self, specs: dict[str, ParamSpec], multiplier
    ) -> optax.GradientTransformation:
        """The update rule over flat dicts of the parameters of `specs`.

        Args:
            specs: what every parameter is.
            multiplier: the schedule, count of finished updates -> factor in [0, 1].
        """
        return common.in_wide_dtype(
            specs, lambda number: self.step(number, specs, multiplier)
        )

    def step(
        self, number: common.Number, specs: dict[str, ParamSpec], multiplier: Callable
    ) -> optax.GradientTransformation:
        """Gradients -> the change of the parameters."""
        roles = self.roles
        return optax.chain(
            common.clip(number, self.clip_norm, roles, specs),
            self.rule(number, specs),
            common.decayed_weights(number, self.weight_decay, roles, specs),
            common.scale_by_rate(number, self.learning_rate, multiplier, roles, specs),
        )
