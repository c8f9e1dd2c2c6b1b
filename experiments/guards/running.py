"""The running norm of the gradient, and which steps stand out from it."""

import math

import jax
import jax.numpy as jnp

AFTER = 20  # steps that no norm is held against: the first gradients fall fast


def check(*, factor: float | None, decay: float) -> None:
    """Refuses a rule that cannot be.

    Raises:
        ValueError: names the keyword.
    """
    if factor is not None and not (math.isfinite(factor) and factor > 1):
        raise ValueError(f"factor must be above 1, got {factor}")
    if not 0 <= decay < 1:
        raise ValueError(f"decay must be in 0 .. 1 (without 1), got {decay}")


def start(dtype) -> dict[str, jax.Array]:
    """Before the first step: the norm [], and how many steps it is of [] int32."""
    return {"norm": jnp.zeros((), dtype), "taken": jnp.int32(0)}


def stands_out(state: dict, norm: jax.Array, factor: float | None) -> jax.Array:
    """Whether a norm is above `factor` times the running one, after `AFTER` steps."""
    if factor is None:
        return jnp.bool_(False)
    return (state["taken"] >= AFTER) & (norm > factor * state["norm"])


def went_on(state: dict, norm: jax.Array, is_taken, decay: float) -> dict:
    """norm <- decay norm + (1 - decay) |g| of a step that is taken, |g| after the first."""
    mean = decay * state["norm"] + (1 - decay) * norm
    mean = jnp.where(state["taken"] == 0, norm, mean).astype(norm.dtype)
    return {
        "norm": jnp.where(is_taken, mean, state["norm"]),
        "taken": state["taken"] + is_taken.astype(jnp.int32),
    }
