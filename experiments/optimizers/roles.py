"""Learning rate, decay and clipping by role of a parameter."""

import math

from blocks.parameters import ROLES, ParamSpec
from experiments.optimizers import common


class Role:
    """What an optimizer does otherwise with the parameters of one role.

        g <- g * min(1, clip / ||g of the role||)       after the clip of all gradients
        p <- p - rate * (step of the optimizer, with decay * weight_decay for its decay)

    Args:
        rate: multiplies the learning rate of the optimizer, so also what decays a step.
        decay: multiplies its weight decay; None does not decay. Whether it is None
            changes the program.
        clip: largest gradient norm of all parameters of the role; None does not clip.
    """

    traced = ("rate", "decay", "clip")

    @staticmethod
    def check(
        *, rate: float = 1.0, decay: float | None = None, clip: float | None = None
    ) -> None:
        """Refuses negative numbers."""
        common.check_not_negative(rate=rate, decay=0.0 if decay is None else decay)
        if clip is not None and not (math.isfinite(clip) and clip > 0):
            raise ValueError(f"clip: expected a finite number > 0 or null, got {clip}")

    def __init__(
        self,
        *,
        rate: float = 1.0,
        decay: float | None = None,
        clip: float | None = None,
    ):
        self.rate = rate
        self.decay = decay
        self.clip = clip


class Roles:
    """A `Role` for every role that a parameter can have (`blocks.parameters.ROLES`)."""

    traced = ()

    def __init__(
        self,
        *,
        matrix,
        embedding,
        head,
        position,
        gain,
        bias,
        alpha,
        shift,
        scale,
        mixing,
        router,
        sink,
    ):
        self.by_name: dict[str, Role] = dict(
            matrix=matrix,
            embedding=embedding,
            head=head,
            position=position,
            gain=gain,
            bias=bias,
            alpha=alpha,
            shift=shift,
            scale=scale,
            mixing=mixing,
            router=router,
            sink=sink,
        )

    def of(self, spec: ParamSpec) -> Role:
        """The role of a parameter."""
        return self.by_name[spec.role]


# Weights of linear maps shrink towards zero; gains, biases, alphas, shifts, scales,
# embeddings, positions, sinks, routers and stream mixings keep the size they learned.
# conf/roles/standard.yaml says the same.
STANDARD = Roles(
    **{name: Role(decay=1.0 if name in ("matrix", "head") else None) for name in ROLES}
)
