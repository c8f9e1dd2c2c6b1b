"""Odd functions of one number, with their slopes written out.

Derivatives found by the chain rule go wrong where these functions are used most: at
zero, where |z| and sign(z) have the slope 0 (an expsign of slope 0 passes no gradient
from a zero input), and in the tails, where two nearly equal terms are subtracted
(z / sqrt(1 + z^2) loses every digit of its slope at z = 500). So each function has its
slope beside it, and automatic differentiation uses that.

Where a function is clipped, its slope is 1 on the edge itself, as of `torch.clip`. |z|
must stay below about 1e19, where squares leave float32.

Source: arXiv 2512.10938 table 7; zlab-princeton/Derf ViT/other_functions. Its
smoothsign is the softsign of others, its linearclip HardTanh.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp


def _with_slope(value: Callable, slope: Callable) -> Callable:
    """The function `value`, of which `slope` is the derivative."""

    @jax.custom_jvp
    def f(z):
        return value(z)

    f.defjvps(lambda dz, _, z: slope(z) * dz)
    return f


def _clipped(value: Callable, slope: Callable) -> Callable:
    """clip(value(z), -1, 1)"""
    return _with_slope(
        lambda z: jnp.clip(value(z), -1, 1),
        lambda z: jnp.where(jnp.abs(value(z)) <= 1, slope(z), 0),
    )


def _where_not_zero(function: Callable) -> Callable:
    """function(|z|), and 0 at zero: there the slope is infinite, and of no use."""

    def safe(z):
        is_zero = z == 0
        return jnp.where(is_zero, 0, function(jnp.where(is_zero, 1, jnp.abs(z))))

    return safe


def _sin_clip(z):
    return jnp.sin(jnp.clip(z, -math.pi / 2, math.pi / 2))


def _sin_slope(z):
    return jnp.where(jnp.abs(z) <= math.pi / 2, jnp.cos(z), 0)


def _root(z):
    return jnp.sqrt(1 + jnp.square(z))


def _log(z):
    return jnp.log1p(jnp.abs(z))


def _cube(
    z,
):  # from 1e6 on z^3 / (1 + z^3) is 1, and z^3 is kept in the range of float32
    return jnp.minimum(jnp.abs(z), 1e6) ** 3


isru = _with_slope(
    lambda z: z * jax.lax.rsqrt(1 + jnp.square(z)),
    lambda z: jax.lax.rsqrt(1 + jnp.square(z)) ** 3,
)

FUNCTIONS: dict[str, Callable] = {
    "erf": jax.lax.erf,
    "tanh": jnp.tanh,
    # sin(clip(z, -pi / 2, pi / 2))
    "satursin": _with_slope(_sin_clip, _sin_slope),
    # clip(arcsinh(z), -1, 1)
    "arcsinhclip": _clipped(jnp.arcsinh, lambda z: 1 / _root(z)),
    # z / sqrt(z^2 + 1)
    "isru": isru,
    # sign(z) (1 - exp(-sqrt(|z|)))
    "exproot": _with_slope(
        lambda z: -jnp.sign(z) * jnp.expm1(-jnp.sqrt(jnp.abs(z))),
        _where_not_zero(lambda a: jnp.exp(-jnp.sqrt(a)) / (2 * jnp.sqrt(a))),
    ),
    # clip(z, -1, 1)
    "hardtanh": _clipped(lambda z: z, jnp.ones_like),
    # sign(z) (1 - exp(-|z|))
    "expsign": _with_slope(
        lambda z: -jnp.sign(z) * jnp.expm1(-jnp.abs(z)),
        lambda z: jnp.exp(-jnp.abs(z)),
    ),
    # clip(sign(z) ln(|z| + 1), -1, 1)
    "logsignclip": _clipped(
        lambda z: jnp.sign(z) * _log(z), lambda z: 1 / (1 + jnp.abs(z))
    ),
    # z / (sqrt(z^2 + 1) + 1)
    "relsign": _with_slope(
        lambda z: z / (_root(z) + 1), lambda z: 1 / (_root(z) * (_root(z) + 1))
    ),
    # (2 / pi) arctan(z)
    "arctan": _with_slope(
        lambda z: (2 / math.pi) * jnp.arctan(z),
        lambda z: (2 / math.pi) / (1 + jnp.square(z)),
    ),
    # z / (1 + |z|)
    "smoothsign": _with_slope(
        lambda z: z / (1 + jnp.abs(z)), lambda z: 1 / jnp.square(1 + jnp.abs(z))
    ),
    # clip(sign(z) ln(z^2 + 1), -1, 1)
    "logquadclip": _clipped(
        lambda z: jnp.sign(z) * jnp.log1p(jnp.square(z)),
        lambda z: 2 * jnp.abs(z) / (1 + jnp.square(z)),
    ),
    # clip(sign(z) |z|^(2/3), -1, 1)
    "power23clip": _clipped(
        lambda z: jnp.sign(z) * jnp.square(jnp.cbrt(z)),
        _where_not_zero(lambda a: (2 / 3) / jnp.cbrt(a)),
    ),
    # sign(z) L / (L + 1), L = ln(|z| + 1)
    "saturlog": _with_slope(
        lambda z: jnp.sign(z) * _log(z) / (_log(z) + 1),
        lambda z: 1 / ((1 + jnp.abs(z)) * jnp.square(1 + _log(z))),
    ),
    # z^3 / (|z|^3 + 1)
    "cubsign": _with_slope(
        lambda z: jnp.sign(z) * _cube(z) / (1 + _cube(z)),
        lambda z: 3 * jnp.square(jnp.minimum(jnp.abs(z), 1e6) / (1 + _cube(z))),
    ),
    "identity": lambda z: z,
}
