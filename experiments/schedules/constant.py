"""No schedule."""

import jax
import jax.numpy as jnp


class Constant:
    """The peak rate throughout: multiplier(count) = 1."""

    traced = ()

    @staticmethod
    def check() -> None:
        """Nothing to refuse."""

    def __call__(self, count, steps, dtype=jnp.float32) -> jax.Array:
        """A scalar 1 of `dtype`; see `WarmupCosine.__call__`."""
        del count, steps
        return jnp.ones((), dtype)
