"""Schedule-free averaging around a step without momentum."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax


class ScheduleFreeState(NamedTuple):
    """base: of the inner transformation. z: its iterates, without averaging.

    count: finished updates. peak: largest rate so far. weight_sum: of the averages.
    """

    base: optax.OptState
    z: optax.Params
    count: jax.Array
    peak: jax.Array
    weight_sum: jax.Array


def schedule_free(
    base: optax.GradientTransformation, rate: Callable, *, b1=0.9, weight_power=2.0
) -> optax.GradientTransformation:
    """Averages the iterates of `base` and takes gradients between them and their mean.

        z <- z + base(g(y), y)
        w = (largest rate so far)^weight_power,     c = w / sum of w
        x <- (1 - c) x + c z
        y = b1 x + (1 - b1) z

    The parameters held during training are y; only z is stored, x is solved for.
    `evaluation_params` gives x, the point to measure and to keep. One update moves y by
    c (z - y) + (1 - b1 (1 - c)) base(g(y), y) with z from before the step.

    Args:
        base: a finished step, rate and sign included, which must have no momentum.
        rate: count of finished updates -> its learning rate, in any unit that does not
            change: c does not depend on it. Zero so far: c = 0.
        b1: share of x in y, > 0; a number or a traced scalar of the dtype of z.
        weight_power: of the rate in the average; likewise.

    Source: arXiv 2405.15682; facebookresearch/schedule_free adamw_schedulefree.py with
    r = 0. optax 0.2.8 `contrib.schedule_free` differs during a warmup: its average
    looks one update ahead of its step.
    """

    def init(params):
        wide = jnp.result_type(*params.values())
        return ScheduleFreeState(
            base.init(params),
            jax.tree.map(jnp.copy, params),  # params and z may be donated together
            jnp.zeros((), jnp.int32),
            jnp.zeros((), wide),
            jnp.zeros((), wide),
        )

    def update(grads, state, params=None):
        peak = jnp.maximum(state.peak, jnp.asarray(rate(state.count), state.peak.dtype))
        # 0^0 is 1: a power of zero weighs all updates alike, also those of rate zero.
        weight = peak**weight_power
        weight_sum = state.weight_sum + weight
        c = jnp.where(
            weight_sum > 0, weight / jnp.where(weight_sum > 0, weight_sum, 1), 0
        )
        steps, inner = base.update(grads, state.base, params)
        updates = jax.tree.map(
            lambda u, y, z: c * (z - y) + (1 - b1 * (1 - c)) * u,
            steps,
            params,
            state.z,
        )
        z = jax.tree.map(jnp.add, state.z, steps)
        count = state.count + 1
        return updates, ScheduleFreeState(inner, z, count, peak, weight_sum)

    return optax.GradientTransformation(init, update)


def evaluation_params(state: ScheduleFreeState, params, b1) -> optax.Params:
    """x, from the y held and the z stored; in the dtype of y."""
    return jax.tree.map(
        lambda y, z: (y + (1 - 1 / b1) * (z - y)).astype(y.dtype), params, state.z
    )
