"""Adafactor: Adam-like steps with second moments of rank one."""

import math

import optax

from blocks.parameters import ParamSpec
from experiments.optimizers import common
from experiments.optimizers.roles import STANDARD, Roles
from experiments.optimizers.scale_by_adafactor import scale_by_adafactor


class Adafactor:
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
        clip_norm: largest global gradient norm; None does not clip.
        roles: factors on rate and decay, and clips, by role; None is `roles.STANDARD`.

    Source: arXiv 1804.04235 algorithms 4 and 5, constants of its section 9.
    Departures: the rate is `learning_rate` times the schedule, not min(1e-2, 1/sqrt(t));
    decay is multiplied by the rate as in the other optimizers, optax's is not.
    """

    traced = (
        "learning_rate",
        "decay_rate",
        "eps",
        "clipping_threshold",
        "min_scale",
        "weight_decay",
        "clip_norm",
    )

    @staticmethod
    def check(
        *,
        learning_rate: float = 1e-2,
        decay_rate: float = 0.8,
        eps: float = 1e-30,
        clipping_threshold: float = 1.0,
        min_scale: float = 1e-3,
        min_dim_size_to_factor: int = 128,
        weight_decay: float = 0.0,
        clip_norm: float | None = 1.0,
        roles: Roles | None = None,
    ) -> None:
        """Refuses values before anything is traced or compiled."""
        common.check_not_negative(
            learning_rate=learning_rate,
            decay_rate=decay_rate,
            min_scale=min_scale,
            weight_decay=weight_decay,
        )
        common.check_eps(eps=eps)
        common.check_clip_norm(clip_norm)
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
        clip_norm: float | None = 1.0,
        roles: Roles | None = None,
    ):
        self.learning_rate = learning_rate
        self.decay_rate = decay_rate
        self.eps = eps
        self.clipping_threshold = clipping_threshold
        self.min_scale = min_scale
        self.min_dim_size_to_factor = min_dim_size_to_factor
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
                scale_by_adafactor(
                    specs,
                    decay_rate=number(self.decay_rate),
                    eps=number(self.eps),
                    clipping_threshold=number(self.clipping_threshold),
                    min_scale=number(self.min_scale),
                    min_dim_size_to_factor=self.min_dim_size_to_factor,
                ),
                common.decayed_weights(number, self.weight_decay, roles, specs),
                common.scale_by_rate(
                    number, self.learning_rate, multiplier, roles, specs
                ),
            )

        return common.in_wide_dtype(specs, make)
