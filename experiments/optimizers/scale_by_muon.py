"""Muon's preconditioner: momentum, orthogonalised matrix by matrix."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

# x -> a x + b x^3 + c x^5, steep at zero; brings singular values near 1, not to it.
QUINTIC = (3.4445, -4.7750, 2.0315)

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
    ns_steps: int = 5,
    ns_eps=1e-7,
    scale: str = "keller",
) -> optax.GradientTransformation:
    """Replaces the gradient of every kernel by a scaled, nearly orthogonal matrix.

        M <- b M + (1 - b) G          b = momentum, no bias correction
        H = b M + (1 - b) G  with nesterov, else M
        u = s * orthogonalise(H)

    Kernels are [..., fan_in, fan_out]; leading axes are copies (layers, experts) and
    never mix. s depends on `scale`:
        keller    sqrt(max(1, fan_out / fan_in))   learning rate about free of width
        spectral  sqrt(fan_out / fan_in)           RMS-to-RMS operator norm of u about 1
        rms0.2    0.2 sqrt(max(fan_in, fan_out))   RMS of u like AdamW's, 0.15 to 0.2

    Args:
        momentum, ns_eps: numbers or traced scalars of the dtype of the gradients.
        nesterov, ns_steps, scale: static.

    Raises:
        ValueError: a leaf with fewer than two axes, or an unknown `scale`.

    Source: KellerJordan/Muon muon.py (keller), arXiv 2502.16982 (rms0.2).
    Departures: the iteration runs in the dtype of the gradients at full matrix-product
    precision where the reference rounds to bfloat16; optax.contrib.muon corrects the
    bias of M, this and the reference do not.
    """
    if scale not in SCALES:
        raise ValueError(f"scale: expected one of {', '.join(SCALES)}, got {scale!r}")

    def init(params):
        return MuonState(jax.tree.map(jnp.zeros_like, params))

    def update(grads, state, params=None):
        del params

        def average(m, g):
            return momentum * m + (1 - momentum) * g

        mu = jax.tree.map(average, state.mu, grads)
        ahead = jax.tree.map(average, mu, grads) if nesterov else mu

        def step(h):
            if h.ndim < 2:
                raise ValueError(f"expected a kernel [..., d_in, d_out], got {h.shape}")
            return orthogonalise(h, ns_steps, ns_eps) * SCALES[scale](*h.shape[-2:])

        return jax.tree.map(step, ahead), MuonState(mu)

    return optax.GradientTransformation(init, update)


def orthogonalise(h: jax.Array, ns_steps: int = 5, eps=1e-7) -> jax.Array:
    """Moves the singular values of every matrix of [..., m, n] towards 1.

        X = H / (||H||_F + eps);   ns_steps times:  A = X X^T,  X <- (a + b A + c A^2) X

    Singular vectors stay. After 5 steps a singular value that held more than 0.002 of
    the Frobenius norm lies in [0.68, 1.21]; null directions stay null, zero gives zero.
    A norm near eps or below is not brought to 1.
    """
    # A = X X^T on the short side: fewer products, the same result.
    tall = h.shape[-2] > h.shape[-1]
    x = h.mT if tall else h
    x = x / (jnp.linalg.norm(x, axis=(-2, -1), keepdims=True) + eps)
    a, b, c = QUINTIC

    def step(x, _):
        gram = _product(x, x.mT)
        return a * x + _product(b * gram + c * _product(gram, gram), x), None

    x, _ = jax.lax.scan(step, x, None, length=ns_steps)
    return x.mT if tall else x


def _product(x, y):
    # The default on GPU and TPU rounds float32 to 10 or 8 bits of mantissa.
    return jnp.matmul(x, y, precision=jax.lax.Precision.HIGHEST)
