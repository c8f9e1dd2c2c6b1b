"""Optimizers that have one rule for hidden matrices and Adam for everything else."""

import abc

import optax

from blocks.parameters import ParamSpec
from experiments.optimizers import common
from experiments.optimizers.roles import STANDARD, Roles


class HiddenMatrices(abc.ABC):
    """A rule for the role matrix, Adam for all other roles.

        g <- g * min(1, clip_norm / ||g||)             over both groups together
        matrices:  p <- p - rate (rule(g) + weight_decay p)
        "adam":    p <- p - adam_rate (adam(g) + adam_weight_decay p)
        rate = learning_rate * schedule, adam_rate = adam_learning_rate * schedule

    Rates and decays of a parameter are multiplied by those of its role (`roles`). Decay
    is decoupled and does not see what the rule does. A subclass has `matrix_rule`, names
    its group, and takes these keywords by `with_keywords_of`. State and arithmetic in
    float32, or float64 for float64 parameters.

    Args:
        learning_rate: peak rate of the matrices.
        weight_decay: of the matrices, per unit of learning rate.
        adam_learning_rate, adam_b1, adam_b2, adam_eps: of the other group.
        adam_weight_decay: of the other group, per unit of its rate; in the standard
            roles it reaches the unembedding alone.
        clip_norm: largest global gradient norm; None does not clip.
        roles: factors on rate and decay, and clips, by role; None is `roles.STANDARD`.
    """

    group: str  # what `groups` calls the matrices
    traced = (
        "learning_rate",
        "weight_decay",
        "adam_learning_rate",
        "adam_b1",
        "adam_b2",
        "adam_eps",
        "adam_weight_decay",
        "clip_norm",
    )

    @staticmethod
    def check(
        *,
        learning_rate: float = 0.02,
        weight_decay: float = 0.1,
        adam_learning_rate: float = 1e-3,
        adam_b1: float = 0.9,
        adam_b2: float = 0.95,
        adam_eps: float = 1e-10,
        adam_weight_decay: float = 0.0,
        clip_norm: float | None = 1.0,
        roles: Roles | None = None,
    ) -> None:
        """Refuses values before anything is traced or compiled."""
        common.check_not_negative(
            learning_rate=learning_rate,
            weight_decay=weight_decay,
            adam_learning_rate=adam_learning_rate,
            adam_weight_decay=adam_weight_decay,
        )
        common.check_decay_rate(adam_b1=adam_b1, adam_b2=adam_b2)
        common.check_eps(adam_eps=adam_eps)
        common.check_clip_norm(clip_norm)

    def __init__(
        self,
        *,
        learning_rate: float = 0.02,
        weight_decay: float = 0.1,
        adam_learning_rate: float = 1e-3,
        adam_b1: float = 0.9,
        adam_b2: float = 0.95,
        adam_eps: float = 1e-10,
        adam_weight_decay: float = 0.0,
        clip_norm: float | None = 1.0,
        roles: Roles | None = None,
    ):
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.adam_learning_rate = adam_learning_rate
        self.adam_b1 = adam_b1
        self.adam_b2 = adam_b2
        self.adam_eps = adam_eps
        self.adam_weight_decay = adam_weight_decay
        self.clip_norm = clip_norm
        self.roles = roles or STANDARD

    @abc.abstractmethod
    def matrix_rule(self, number: common.Number) -> optax.GradientTransformation:
        """Gradients of kernels [copies..., d_in, d_out] -> what decay is added to.

        Copies never mix. `number(x)` casts a hyperparameter to the dtype of the step.
        """

    def finish(self, number: common.Number) -> optax.GradientTransformation:
        """What happens to the finished step of the matrices; nothing, usually."""
        del number
        return optax.identity()

    def groups(self, specs: dict[str, ParamSpec]) -> dict[str, str]:
        """Path -> the group of the matrices (exactly the role matrix) or "adam".

        Raises:
            ValueError: a matrix whose copies are not [d_in, d_out]. Its last two axes
                alone would be a kernel, silently.
        """
        for path, spec in specs.items():
            if spec.role == "matrix" and len(spec.shape) != spec.n_stacked + 2:
                raise ValueError(
                    f"parameter {path}: {type(self).__name__} expects a matrix to be "
                    f"[d_in, d_out] after its {spec.n_stacked} stacked axes, got shape "
                    f"{spec.shape}"
                )
        return {
            path: self.group if spec.role == "matrix" else "adam"
            for path, spec in specs.items()
        }

    def transform(
        self, specs: dict[str, ParamSpec], multiplier
    ) -> optax.GradientTransformation:
        """The update rule over flat dicts of the parameters of `specs`.

        Args:
            specs: what every parameter is.
            multiplier: the schedule, count of finished updates -> factor in [0, 1];
                both groups follow it.
        """
        groups, roles = self.groups(specs), self.roles

        def make(number):
            def finished(rule, weight_decay, learning_rate):
                return optax.chain(
                    rule,
                    common.decayed_weights(number, weight_decay, roles, specs),
                    common.scale_by_rate(
                        number, learning_rate, multiplier, roles, specs
                    ),
                )

            rule = self.matrix_rule(number)
            adam = optax.scale_by_adam(
                number(self.adam_b1), number(self.adam_b2), number(self.adam_eps)
            )
            by_group = {
                self.group: optax.chain(
                    finished(rule, self.weight_decay, self.learning_rate),
                    self.finish(number),
                ),
                "adam": finished(adam, self.adam_weight_decay, self.adam_learning_rate),
            }
            # Clipping inside a group would see the norm of that group only.
            return optax.chain(
                common.clip(number, self.clip_norm, roles, specs),
                optax.partition(by_group, groups),
            )

        return common.in_wide_dtype(specs, make)
