"""Adafactor's preconditioner: second moments as a row times a column."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from blocks.parameters import ParamSpec


class Factored(NamedTuple):
    """Second moments of a kernel: means over the outputs, means over the inputs."""

    row: jax.Array  # [..., d_in, 1]
    col: jax.Array  # [..., 1, d_out]


class Whole(NamedTuple):
    """Second moments of every entry."""

    v: jax.Array


class AdafactorState(NamedTuple):
    """count: finished updates. moments: path -> `Factored` or `Whole`."""

    count: jax.Array
    moments: dict[str, Factored | Whole]


def scale_by_adafactor(
    specs: dict[str, ParamSpec],
    *,
    decay_rate=0.8,
    eps=1e-30,
    clipping_threshold=1.0,
    min_scale=1e-3,
    min_dim_size_to_factor: int = 128,
) -> optax.GradientTransformation:
    """Divides by factored root mean squares, clips, and scales by the parameter.

        b2 = 1 - t^-decay_rate                          t = 1, 2, ...
        row <- b2 row + (1 - b2) mean_out(g^2 + eps)    col likewise over the inputs
        v = row col / mean(row)                         v entry by entry if not factored
        u = g / sqrt(v)
        u <- u / max(1, rms(u) / clipping_threshold)
        u <- u * max(min_scale, rms(p))

    Everything is taken per copy of a parameter: the leading `n_stacked` axes of its spec
    (layers, experts) never mix, neither in the factors nor in the two norms. A copy is
    factored if it is [d_in, d_out] with both at least `min_dim_size_to_factor`.

    Args:
        decay_rate, eps, clipping_threshold, min_scale: numbers or traced scalars of the
            dtype of the gradients.
        min_dim_size_to_factor: static.

    Source: arXiv 1804.04235 algorithms 4 and 5 without momentum. optax 0.2.8 `adafactor`
    gives the same on single parameters; on stacked ones it clips and scales all layers
    by one number.
    """

    def is_factored(spec):
        own = spec.shape[spec.n_stacked :]
        return len(own) == 2 and min(own) >= min_dim_size_to_factor

    def start(spec, p):
        if is_factored(spec):
            return Factored(jnp.zeros_like(p[..., :1]), jnp.zeros_like(p[..., :1, :]))
        return Whole(jnp.zeros_like(p))

    def init(params):
        return AdafactorState(
            jnp.zeros((), jnp.int32), {k: start(specs[k], p) for k, p in params.items()}
        )

    def step(spec, g, p, moments, b2):
        square = g * g + eps
        if is_factored(spec):
            row = b2 * moments.row + (1 - b2) * square.mean(-1, keepdims=True)
            col = b2 * moments.col + (1 - b2) * square.mean(-2, keepdims=True)
            moments = Factored(row, col)
            # One root at a time: the product of two of 1e-30 is zero in float32.
            u = g / jnp.sqrt(row / row.mean(-2, keepdims=True)) / jnp.sqrt(col)
        else:
            moments = Whole(b2 * moments.v + (1 - b2) * square)
            u = g / jnp.sqrt(moments.v)
        u = u / jnp.maximum(1, _rms(u, spec) / clipping_threshold)
        return u * jnp.maximum(min_scale, _rms(p, spec)), moments

    def update(grads, state, params=None):
        count = state.count + 1
        updates, moments = {}, {}
        for path, g in grads.items():
            b2 = 1 - count.astype(g.dtype) ** -decay_rate
            updates[path], moments[path] = step(
                specs[path], g, params[path], state.moments[path], b2
            )
        return updates, AdafactorState(count, moments)

    return optax.GradientTransformation(init, update)


def _rms(x, spec):
    own = tuple(range(spec.n_stacked, x.ndim))
    return jnp.sqrt(jnp.mean(x * x, axis=own, keepdims=True))
