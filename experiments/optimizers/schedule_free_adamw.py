"""Schedule-free AdamW: averaging in place of momentum and of a decaying rate."""

from collections.abc import Callable

import jax.numpy as jnp
import optax

from blocks.keywords import with_keywords_of
from blocks.parameters import ParamSpec
from experiments.optimizers import common
from experiments.optimizers.one_rule import OneRule
from experiments.optimizers.schedule_free import evaluation_params, schedule_free


class ScheduleFreeAdamW(OneRule):
    """Adam without momentum, averaged as it goes.

        g <- g * min(1, clip_norm / ||g||)             gradients at y, all parameters
        v <- b2 v + (1 - b2) g^2
        u = g / (sqrt(v / (1 - b2^t)) + eps)
        z <- z - rate (u + weight_decay y)
        x <- (1 - c) x + c z,    c = (largest rate so far)^weight_power / their sum
        y = b1 x + (1 - b1) z
        rate = learning_rate * min(1, t / warmup_steps) * schedule,    t = 1, 2, ...

    **The parameters held in training are y; the ones to measure and to keep are x.** So
    are the parameters of a checkpoint, whose optimizer state holds z; `evaluated` gives x.
    Meant for a constant schedule, with the warmup here: its weights count in the average
    from the first update on, while a schedule that starts at zero is weighed by its own
    multiplier. A decaying schedule works, but is what the method does without.

    Decay, rate and clip may differ by role (`Roles`); the weights c are the same for
    all. Decay is taken at y. State and arithmetic in float32, or float64 for float64
    parameters.

    Args:
        learning_rate: rate after the warmup.
        b1: share of x in y, > 0: the part of a momentum.
        b2: decay per step of the average of g^2.
        eps: added to the root, outside it.
        warmup_steps: updates of rising rate; the t-th has t / warmup_steps of it.
        weight_power: of the rate in the average.
        weight_decay: per unit of learning rate, times the decay of the role.
        the others: of `OneRule`.

    Source: arXiv 2405.15682 algorithm 1; facebookresearch/schedule_free
    adamw_schedulefree.py 1.4, with r = 0.
    """

    traced = (*OneRule.traced, "b1", "b2", "eps", "warmup_steps", "weight_power")

    @staticmethod
    @with_keywords_of(OneRule.check)
    def check(
        *,
        learning_rate: float = 2.5e-3,
        b1: float = 0.9,
        b2: float = 0.999,
        eps: float = 1e-8,
        warmup_steps: int = 0,
        weight_power: float = 2.0,
        weight_decay: float = 0.1,
        **others,
    ) -> None:
        """Refuses values before anything is traced or compiled."""
        OneRule.check(learning_rate=learning_rate, weight_decay=weight_decay, **others)
        common.check_not_negative(
            warmup_steps=warmup_steps,
            weight_power=weight_power,
        )
        if not 0 < b1 < 1:
            raise ValueError(f"b1: expected a number in (0, 1), got {b1}")
        common.check_decay_rate(b2=b2)
        common.check_eps(eps=eps)

    @with_keywords_of(OneRule.__init__)
    def __init__(
        self,
        *,
        learning_rate: float = 2.5e-3,
        b1: float = 0.9,
        b2: float = 0.999,
        eps: float = 1e-8,
        warmup_steps: int = 0,
        weight_power: float = 2.0,
        weight_decay: float = 0.1,
        **others,
    ):
        super().__init__(
            learning_rate=learning_rate, weight_decay=weight_decay, **others
        )
        self.b1 = b1
        self.b2 = b2
        self.eps = eps
        self.warmup_steps = warmup_steps
        self.weight_power = weight_power

    def rule(self, number: common.Number, specs) -> optax.GradientTransformation:
        """Adam without a first moment."""
        del specs  # every parameter alike
        return optax.scale_by_rms(
            number(self.b2),
            number(self.eps),
            eps_in_sqrt=False,
            bias_correction=True,
        )

    def step(
        self, number: common.Number, specs: dict[str, ParamSpec], multiplier: Callable
    ) -> optax.GradientTransformation:
        """The step of z, from gradients at y, and the average x that it moves."""

        def warmed(count):
            # 1 without a warmup: count + 1 >= 1.
            up = number(count + 1) / jnp.maximum(number(self.warmup_steps), 1)
            return jnp.minimum(up, 1) * number(multiplier(count))

        return schedule_free(
            super().step(number, specs, warmed),
            warmed,
            b1=number(self.b1),
            weight_power=number(self.weight_power),
        )

    def evaluated(self, opt_state, params):
        """The parameters to measure and to keep: x, from the state and the y held.

        Args:
            opt_state: of `transform`.
            params: as training holds them; not changed.
        """
        return evaluation_params(opt_state, params, self.b1)
