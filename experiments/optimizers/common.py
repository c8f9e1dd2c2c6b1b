"""What the optimizers share: decay by role, clipping, dtypes, refusals."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from blocks.parameters import ParamSpec

Number = Callable[[float | None], jax.Array | None]  # casts to the dtype of a step


def clip(
    number: Number, clip_norm, roles, specs: dict[str, ParamSpec]
) -> optax.GradientTransformation:
    """g <- g * min(1, clip_norm / ||g||) over all gradients, then over each role's own.

    None leaves them.
    """
    steps = [] if clip_norm is None else [optax.clip_by_global_norm(number(clip_norm))]
    for name, role in roles.by_name.items():
        if role.clip is not None:
            own = {path: spec.role == name for path, spec in specs.items()}
            of_role = optax.clip_by_global_norm(number(role.clip))
            steps.append(optax.masked(of_role, own))
    return optax.chain(optax.identity(), *steps)


def decayed_weights(
    number: Number, weight_decay, roles, specs: dict[str, ParamSpec]
) -> optax.GradientTransformation:
    """u <- u + weight_decay * decay of the role * p; before the learning rate."""
    decays = {
        path: None if role.decay is None else number(weight_decay) * number(role.decay)
        for path, role in _roles(roles, specs)
    }

    def update(updates, state, params=None):
        def decayed(path, u, p):
            decay = decays[path]
            return u if decay is None else u + decay * p

        return _map_with_path(decayed, updates, params), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def scale_by_rate(
    number: Number,
    learning_rate,
    multiplier: Callable,
    roles,
    specs: dict[str, ParamSpec],
) -> optax.GradientTransformation:
    """u <- -learning_rate * rate of the role * multiplier(count) * u.

    count is the number of finished updates, from 0.
    """
    rates = {path: number(role.rate) for path, role in _roles(roles, specs)}

    def init(params):
        del params
        return optax.ScaleByScheduleState(jnp.zeros([], jnp.int32))

    def update(updates, state, params=None):
        del params
        rate = number(learning_rate) * multiplier(state.count)
        updates = _map_with_path(lambda path, u: -(rate * rates[path]) * u, updates)
        count = optax.safe_increment(state.count)
        return updates, optax.ScaleByScheduleState(count)

    return optax.GradientTransformation(init, update)


def _roles(roles, specs: dict[str, ParamSpec]):
    return [(path, roles.of(spec)) for path, spec in specs.items()]


def _map_with_path(function: Callable, *flat: dict) -> dict:
    """function(path, array, ...) over flat dicts; what a partition hides stays hidden."""
    return jax.tree_util.tree_map_with_path(
        lambda keys, *arrays: function(keys[0].key, *arrays), *flat
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
