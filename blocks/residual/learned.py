"""A learned factor of a joint."""

import jax.numpy as jnp
from flax import nnx


def learned_factor(width: int, value) -> nnx.Param:
    """[width] (one number, or one per feature) that starts at `value`, float32."""
    return nnx.Param(jnp.full((width,), value, jnp.float32), role="scale")
