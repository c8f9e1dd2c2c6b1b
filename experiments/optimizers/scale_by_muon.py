"""Muon's preconditioner: momentum, orthogonalised matrix by matrix."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from experiments.optimizers.newton_schulz import QUINTIC, Polynomials

SCALES = {
    "keller": lambda fan_in, fan_out: max(1.0, fan_out / fan_in) ** 0.5,
    "spectral": lambda fan_in, fan_out: (fan_out / fan_in) ** 0.5,
    "rms0.2": lambda fan_in, fan_out: 0.2 * max(fan_in, fan_out) ** 0.5,
}


class MuonState(NamedTuple):
    """mu: moving average of the gradients, in their dtype and shapes."""

    mu: optax.Updates


def scale_by_muon(
    momentum=0.95,
    *,
    nesterov: bool = True,
    iteration: Polynomials = QUINTIC,
    scale: str = "keller",
) -> optax.GradientTransformation:
    """Replaces the gradient of every kernel by a scaled, nearly orthogonal matrix.

        M <- b M + (1 - b) G          b = momentum, no bias correction
        H = b M + (1 - b) G  with nesterov, else M
        u = s * orthogonal(H)         by `iteration`

    Kernels are [..., fan_in, fan_out]; leading axes are copies (layers, experts) and
    never mix. s depends on `scale`:
        keller    sqrt(max(1, fan_out / fan_in))   learning rate about free of width
        spectral  sqrt(fan_out / fan_in)           RMS-to-RMS operator norm of u about 1
        rms0.2    0.2 sqrt(max(fan_in, fan_out))   RMS of u like AdamW's, 0.15 to 0.2

    Args:
        momentum: a number or a traced scalar of the dtype of the gradients.
        nesterov, iteration, scale: static.

    Raises:
        ValueError: a leaf with fewer than two axes, or an unknown `scale`.

    Source: KellerJordan/Muon muon.py (keller), arXiv 2502.16982 (rms0.2).
    Departures: the iteration runs in the dtype of the gradients at full matrix-product
    precision where the reference rounds to bfloat16; optax.contrib.muon corrects the
    bias of M, this and the reference do not.
    """
    return optax.chain(
        averaged(momentum, nesterov=nesterov),
        on_kernels(iteration),
        scaled_by_shape(scale),
    )


def averaged(momentum, *, nesterov: bool = True) -> optax.GradientTransformation:
    """G -> H of `scale_by_muon`."""

    def init(params):
        return MuonState(jax.tree.map(jnp.zeros_like, params))

    def update(grads, state, params=None):
        del params

        def average(m, g):
            return momentum * m + (1 - momentum) * g

        mu = jax.tree.map(average, state.mu, grads)
        ahead = jax.tree.map(average, mu, grads) if nesterov else mu
        return ahead, MuonState(mu)

    return optax.GradientTransformation(init, update)


def on_kernels(function: Callable) -> optax.GradientTransformation:
    """function(kernel) of every leaf [..., d_in, d_out]."""

    def apply(x):
        if x.ndim < 2:
            raise ValueError(f"expected a kernel [..., d_in, d_out], got {x.shape}")
        return function(x)

    return optax.stateless(lambda updates, _: jax.tree.map(apply, updates))


def scaled_by_shape(scale: str) -> optax.GradientTransformation:
    """Multiplies every kernel [..., fan_in, fan_out] by its factor in `SCALES`."""
    check_scale(scale)
    return on_kernels(lambda x: x * SCALES[scale](*x.shape[-2:]))


def check_scale(scale: str) -> None:
    """Refuses a name that is not in `SCALES`."""
    if scale not in SCALES:
        raise ValueError(f"scale: expected one of {', '.join(SCALES)}, got {scale!r}")
