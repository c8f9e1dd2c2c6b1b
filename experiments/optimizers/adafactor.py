"""Adafactor: Adam-like steps with second moments of rank one."""

import math

import optax

from blocks.keywords import with_keywords_of
from experiments.optimizers import common
from experiments.optimizers.one_rule import OneRule
from experiments.optimizers.scale_by_adafactor import scale_by_adafactor


class Adafactor(OneRule):
    """Steps relative to the size of the parameter, with weight decay by role.

        g <- g * min(1, clip_norm / ||g||)             over all parameters
        u = g / sqrt(row col / mean(row))              see `scale_by_adafactor`
        u <- u / max(1, rms(u) / clipping_threshold) * max(min_scale, rms(p))
        p <- p - rate (u + weight_decay p)             rate = learning_rate * schedule

    The moments of a kernel are a row and a column per layer or expert, d_in + d_out
    numbers. There is no momentum. Every layer is clipped and scaled by itself, so a
    stacked model trains as its layers would one by one. Decay, rate and clip may differ
    by role (`Roles`). State and arithmetic in float32, or float64 for float64
    parameters; the update has the dtype of the parameter.

    Args:
        learning_rate: peak rate, relative to the size of a parameter.
        decay_rate: the average at update t forgets by 1 - t^-decay_rate.
        eps: added to the squared gradient.
        clipping_threshold: largest root mean square of u before scaling.
        min_scale: least size of a parameter in the scaling; what starts at zero moves
            by it.
        min_dim_size_to_factor: sides of a kernel below it keep all moments. Static.
        weight_decay: per unit of learning rate, times the decay of the role.
        the others: of `OneRule`.

    Source: arXiv 1804.04235 algorithms 4 and 5, constants of its section 9.
    Departures: the rate is `learning_rate` times the schedule, not min(1e-2, 1/sqrt(t));
    decay is multiplied by the rate as in the other optimizers, optax's is not.
    """

    traced = (*OneRule.traced, "decay_rate", "eps", "clipping_threshold", "min_scale")

    @staticmethod
    @with_keywords_of(OneRule.check)
    def check(
        *,
        learning_rate: float = 1e-2,
        decay_rate: float = 0.8,
        eps: float = 1e-30,
        clipping_threshold: float = 1.0,
        min_scale: float = 1e-3,
        min_dim_size_to_factor: int = 128,
        weight_decay: float = 0.0,
        **others,
    ) -> None:
        """Refuses values before anything is traced or compiled."""
        OneRule.check(learning_rate=learning_rate, weight_decay=weight_decay, **others)
        common.check_not_negative(decay_rate=decay_rate, min_scale=min_scale)
        common.check_eps(eps=eps)
        if not (math.isfinite(clipping_threshold) and clipping_threshold > 0):
            raise ValueError(
                "clipping_threshold: expected a finite number > 0, "
                f"got {clipping_threshold}"
            )
        if min_dim_size_to_factor < 1:
            raise ValueError(
                f"min_dim_size_to_factor: expected at least 1, "
                f"got {min_dim_size_to_factor}"
            )

    @with_keywords_of(OneRule.__init__)
    def __init__(
        self,
        *,
        learning_rate: float = 1e-2,
        decay_rate: float = 0.8,
        eps: float = 1e-30,
        clipping_threshold: float = 1.0,
        min_scale: float = 1e-3,
        min_dim_size_to_factor: int = 128,
        weight_decay: float = 0.0,
        **others,
    ):
        super().__init__(
            learning_rate=learning_rate, weight_decay=weight_decay, **others
        )
        self.decay_rate = decay_rate
        self.eps = eps
        self.clipping_threshold = clipping_threshold
        self.min_scale = min_scale
        self.min_dim_size_to_factor = min_dim_size_to_factor

    def rule(self, number: common.Number, specs) -> optax.GradientTransformation:
        """`scale_by_adafactor` with these numbers."""
        return scale_by_adafactor(
            specs,
            decay_rate=number(self.decay_rate),
            eps=number(self.eps),
            clipping_threshold=number(self.clipping_threshold),
            min_scale=number(self.min_scale),
            min_dim_size_to_factor=self.min_dim_size_to_factor,
        )
