"""What the optimizers share: decay by role, clipping, dtypes, refusals."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from blocks.parameters import ParamSpec

# Weights of linear maps shrink towards zero; gains, biases, alphas, shifts, scales,
# embeddings, positions, sinks, routers and stream mixings keep the size they learned.
DECAYED_ROLES = frozenset({"matrix", "head"})


def decay_groups(specs: dict[str, ParamSpec]) -> dict[str, str]:
    """Path -> "decay" or "no_decay", by role."""
    return {
        path: "decay" if spec.role in DECAYED_ROLES else "no_decay"
        for path, spec in specs.items()
    }


def decayed_weights(weight_decay, groups: dict[str, str]):
    """u <- u + weight_decay * p in the group "decay"; before the learning rate."""
    mask = {path: group == "decay" for path, group in groups.items()}
    return optax.add_decayed_weights(weight_decay, mask)


def scale_by_rate(learning_rate, multiplier: Callable) -> optax.GradientTransformation:
    """u <- -learning_rate * multiplier(count) * u, count of finished updates from 0."""
    return optax.scale_by_schedule(lambda count: -(learning_rate * multiplier(count)))


def clip(clip_norm) -> optax.GradientTransformation:
    """g <- g * min(1, clip_norm / ||g||) over all gradients; None leaves them."""
    return (
        optax.identity() if clip_norm is None else optax.clip_by_global_norm(clip_norm)
    )


def in_wide_dtype(
    specs: dict[str, ParamSpec],
    make: Callable[[Callable], optax.GradientTransformation],
) -> optax.GradientTransformation:
    """Runs a transformation in the widest of float32 and the parameters' dtypes.

    `make(number)` builds it; `number(x)` is x in that dtype. Gradients and parameters
    are widened before, updates are rounded to the dtype of their parameter after. So
    the state is float32 (float64 for float64 parameters), and keeps its dtype whatever
    the dtype of the hyperparameters: a wider one would change the carry of a scan, a
    Python float would round 1 - b2 otherwise than a traced one.

    Raises:
        ValueError: parameters other than the ones of `specs`, or none in `update`.
    """

    def dtype_of(params):
        if params is None:
            raise ValueError("expected the parameters as third argument, got None")
        if params.keys() != specs.keys():
            odd = sorted(params.keys() ^ specs.keys())
            raise ValueError(
                f"expected an array for every parameter and no other, differing: {odd}"
            )
        return jnp.result_type(jnp.float32, *params.values())

    def build(dtype):
        return make(lambda x: None if x is None else jnp.asarray(x, dtype))

    def init(params):
        dtype = dtype_of(params)
        return build(dtype).init(optax.tree.cast(params, dtype))

    def update(grads, state, params=None):
        dtype = dtype_of(params)
        updates, state = build(dtype).update(
            optax.tree.cast(grads, dtype), state, optax.tree.cast(params, dtype)
        )
        return jax.tree.map(lambda u, p: u.astype(p.dtype), updates, params), state

    return optax.GradientTransformation(init, update)


def check_not_negative(**numbers) -> None:
    """Refuses what is not a finite number >= 0, by name."""
    for key, value in numbers.items():
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"{key}: expected a finite number >= 0, got {value}")


def check_decay_rate(**numbers) -> None:
    """Refuses what is not in [0, 1): factors of moving averages."""
    for key, value in numbers.items():
        if not 0 <= value < 1:
            raise ValueError(f"{key}: expected a number in [0, 1), got {value}")


def check_eps(**numbers) -> None:
    """Refuses an eps that float32 would flush to zero: 0 / (0 + eps) must be 0."""
    smallest = float(jnp.finfo(jnp.float32).tiny)
    for key, value in numbers.items():
        if not (math.isfinite(value) and value >= smallest):
            raise ValueError(
                f"{key}: expected a finite number >= {smallest:.3g} (the smallest "
                f"normal float32), got {value}"
            )


def check_clip_norm(clip_norm: float | None) -> None:
    """Refuses a clip that is neither null nor positive."""
    if clip_norm is not None and not (math.isfinite(clip_norm) and clip_norm > 0):
        raise ValueError(
            f"clip_norm: expected a finite number > 0, or null for no clipping, "
            f"got {clip_norm}"
        )
