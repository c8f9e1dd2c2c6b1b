"""Curves of functions of one number: normalizers along a line, activations."""

import re

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from blocks.ffn.activations import ACTIVATIONS, activation_of
from blocks.modes import set_training

LIMIT, POINTS = 4.0, 161
DIGITS = 6


def grid() -> list[float]:
    """The values of t, from -LIMIT to LIMIT."""
    return [round(float(t), DIGITS) for t in np.linspace(-LIMIT, LIMIT, POINTS)]


def norm_curves(norm: nnx.Module, d_model: int) -> dict[str, dict[str, list]]:
    """y_i and dy_i/dt of a normalizer at its initial values, along two lines.

        token    x = t u, u of unit mean square: the whole token grows
        feature  x_i = t, the other features those of u: one feature grows

    u is one draw from a normal distribution with the feature i, the one nearest to 1,
    set to 1 and the others scaled to a mean square of 1. Non-finite values are None.
    """
    set_training(norm, False)  # one token has no batch to take statistics over
    direction = jax.random.normal(jax.random.key(0), (d_model,), jnp.float32)
    i = int(jnp.argmin(jnp.abs(direction - 1)))
    others = direction.at[i].set(0)
    # u_i is exactly one, and the mean square of all features with it.
    others *= jnp.sqrt((d_model - 1) / jnp.maximum(jnp.sum(others**2), 1e-6))
    direction = others.at[i].set(1)
    only = direction - others
    graphdef, state = nnx.split(norm)

    @jax.jit
    def lines(t):
        def along(base, step):
            def feature(t):
                x = (base + t * step)[None]
                return nnx.merge(graphdef, state)(x)[0, i]

            return jax.vmap(jax.value_and_grad(feature))(t)

        token = along(jnp.zeros_like(direction), direction)
        return {"token": token, "feature": along(others, only)}

    values = lines(jnp.asarray(grid(), jnp.float32))
    return {name: _curve(*values[name]) for name in ("token", "feature")}


def activation_curves() -> list[dict]:
    """Name, description, value and slope of every activation of a feed-forward."""
    t = jnp.asarray(grid(), jnp.float32)
    found = []
    for name in ACTIVATIONS:
        function = activation_of(name)
        y, slope = jax.jit(jax.vmap(jax.value_and_grad(function)))(t)
        found.append({"name": name, "says": _first_line(function), **_curve(y, slope)})
    return found


def _first_line(function) -> str:
    """Of a docstring, without the markup of mathematics in those of jax.nn."""
    line = (function.__doc__ or "").strip().partition("\n")[0].rstrip(".")
    return re.sub(r":math:`(?:\\mathrm\{)?([^`}]*)\}?`", r"\1", line)


def _curve(y, slope) -> dict[str, list]:
    return {"y": _numbers(y), "slope": _numbers(slope)}


def _numbers(values) -> list[float | None]:
    return [
        float(f"{v:.{DIGITS}g}") if np.isfinite(v) else None
        for v in np.asarray(values, np.float64)
    ]
