"""Several normalizers in one program, told apart by an input."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from blocks.state import Running


class Switch(nnx.Module):
    """y = choices[which](x), with `which` an input of the program.

    Sweeping `which` compiles once where sweeping the normalizer compiles once per
    choice; a run pays for the branch it takes only. Every choice has its parameters,
    those not taken have a gradient of zero. Under the vmap layout all choices are
    computed. In a stack all layers of a run take the same choice.

    Sub-modules: choices.0 ... in the order given. State: which [] uint32.
    Arithmetic, roles and initial values are those of the choices.
    """

    traced = ("which",)
    has_state = True

    @staticmethod
    def check(*, which: int = 0) -> None:
        """Raises ValueError for an index below 0."""
        if which < 0:
            raise ValueError(f"which must be at least 0, got {which}")

    def __init__(
        self,
        d_model: int,
        *,
        which: int = 0,
        choice_0: Callable,
        choice_1: Callable,
        choice_2: Callable | None = None,
        choice_3: Callable | None = None,
        choice_4: Callable | None = None,
        rngs: nnx.Rngs,
    ):
        """Args:
        d_model: size of the last axis of the input.
        which: index of the choice; one beyond the last is the last.
        choice_0 ... choice_4: factories of normalizers.
        rngs: handed to the choices.
        """
        factories = (choice_0, choice_1, choice_2, choice_3, choice_4)
        self.which = Running(jnp.asarray(which, jnp.uint32))
        self.choices = nnx.List(
            make(d_model, rngs=rngs) for make in factories if make is not None
        )
        for choice in self.choices:
            if nnx.to_flat_state(nnx.state(choice, nnx.Not(nnx.Param))):
                raise ValueError(
                    f"{type(choice).__name__} has running state, which a switch cannot "
                    "carry"
                )

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps [..., d_model] to [..., d_model] in the dtype of `x`."""
        index = jnp.minimum(self.which[...], len(self.choices) - 1).astype(jnp.int32)
        return jax.lax.switch(index, list(self.choices), x)
