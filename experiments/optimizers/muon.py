"""Muon for hidden matrices, Adam for everything else."""

import optax

from blocks.parameters import ParamSpec
from experiments.optimizers import common
from experiments.optimizers.scale_by_muon import SCALES, scale_by_muon


class Muon:
    """Orthogonalised momentum on the role matrix, Adam on all other roles.

        g <- g * min(1, clip_norm / ||g||)             over both groups together
        "muon":  p <- p - rate (s * orthogonalise(H) + weight_decay p)
        "adam":  p <- p - adam_rate * adam(g)          no decay, no Nesterov
        rate = learning_rate * schedule, adam_rate = adam_learning_rate * schedule

    H and s: `scale_by_muon`. Every layer and every kernel is orthogonalised by itself,
    so a stacked model trains as its layers would one by one. The unembedding is in
    group "adam" and, unlike under `AdamW`, is not decayed. Decay is multiplied by the
    rate without s. State and arithmetic in float32, or float64 for float64 parameters.

    A rate means another step under each `scale`: for a square d x d kernel
    rate(rms0.2) = rate(keller) / (0.2 sqrt(d)). Choose one per study.

    Args:
        learning_rate: peak rate of the matrices.
        momentum: decay per step of the average of the gradients.
        nesterov: mix the gradient in once more. Not traced, nor are the next two.
        ns_steps: Newton-Schulz steps.
        scale: "keller", "spectral" or "rms0.2".
        ns_eps: added to the Frobenius norm. Gradients whose norm is near it or below
            get shorter updates.
        weight_decay: of the matrices, per unit of learning rate.
        adam_learning_rate, adam_b1, adam_b2, adam_eps: of the other group.
        clip_norm: largest global gradient norm; None does not clip. The update of a
            matrix ignores the size of its gradient, but its momentum then weighs large
            gradients more.

    Source: KellerJordan/Muon muon.py, its auxiliary Adam included. Departure: decay is
    0.1 as in arXiv 2502.16982, where the reference has 0.
    """

    traced = (
        "learning_rate",
        "momentum",
        "ns_eps",
        "weight_decay",
        "adam_learning_rate",
        "adam_b1",
        "adam_b2",
        "adam_eps",
        "clip_norm",
    )

    @staticmethod
    def check(
        *,
        learning_rate: float = 0.02,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_steps: int = 5,
        scale: str = "keller",
        ns_eps: float = 1e-7,
        weight_decay: float = 0.1,
        adam_learning_rate: float = 1e-3,
        adam_b1: float = 0.9,
        adam_b2: float = 0.95,
        adam_eps: float = 1e-10,
        clip_norm: float | None = 1.0,
    ) -> None:
        """Refuses values before anything is traced or compiled."""
        del nesterov
        common.check_not_negative(
            learning_rate=learning_rate,
            weight_decay=weight_decay,
            adam_learning_rate=adam_learning_rate,
        )
        common.check_decay_rate(momentum=momentum, adam_b1=adam_b1, adam_b2=adam_b2)
        common.check_eps(ns_eps=ns_eps, adam_eps=adam_eps)
        common.check_clip_norm(clip_norm)
        if ns_steps < 1:
            raise ValueError(f"ns_steps: expected at least 1, got {ns_steps}")
        if scale not in SCALES:
            raise ValueError(
                f"scale: expected one of {', '.join(SCALES)}, got {scale!r}"
            )

    def __init__(
        self,
        *,
        learning_rate: float = 0.02,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_steps: int = 5,
        scale: str = "keller",
        ns_eps: float = 1e-7,
        weight_decay: float = 0.1,
        adam_learning_rate: float = 1e-3,
        adam_b1: float = 0.9,
        adam_b2: float = 0.95,
        adam_eps: float = 1e-10,
        clip_norm: float | None = 1.0,
    ):
        self.learning_rate = learning_rate
        self.momentum = momentum
        self.nesterov = nesterov
        self.ns_steps = ns_steps
        self.scale = scale
        self.ns_eps = ns_eps
        self.weight_decay = weight_decay
        self.adam_learning_rate = adam_learning_rate
        self.adam_b1 = adam_b1
        self.adam_b2 = adam_b2
        self.adam_eps = adam_eps
        self.clip_norm = clip_norm

    def groups(self, specs: dict[str, ParamSpec]) -> dict[str, str]:
        """Path -> "muon" (exactly the role matrix) or "adam".

        Raises:
            ValueError: a matrix whose copies are not [d_in, d_out]. Its last two axes
                alone would be orthogonalised, silently.
        """
        for path, spec in specs.items():
            if spec.role == "matrix" and len(spec.shape) != spec.n_stacked + 2:
                raise ValueError(
                    f"parameter {path}: Muon expects a matrix to be [d_in, d_out] "
                    f"after its {spec.n_stacked} stacked axes, got shape {spec.shape}"
                )
        return {
            path: "muon" if spec.role == "matrix" else "adam"
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
        groups = self.groups(specs)

        def make(number):
            muon = optax.chain(
                scale_by_muon(
                    number(self.momentum),
                    nesterov=self.nesterov,
                    ns_steps=self.ns_steps,
                    ns_eps=number(self.ns_eps),
                    scale=self.scale,
                ),
                optax.add_decayed_weights(number(self.weight_decay)),
                common.scale_by_rate(number(self.learning_rate), multiplier),
            )
            adam = optax.chain(
                optax.scale_by_adam(
                    number(self.adam_b1), number(self.adam_b2), number(self.adam_eps)
                ),
                common.scale_by_rate(number(self.adam_learning_rate), multiplier),
            )
            # Clipping inside a group would see the norm of that group only.
            return optax.chain(
                common.clip(number(self.clip_norm)),
                optax.partition({"muon": muon, "adam": adam}, groups),
            )

        return common.in_wide_dtype(specs, make)
