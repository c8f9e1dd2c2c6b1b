"""A loss that enters as a gradient only."""

import jax
import jax.numpy as jnp


@jax.custom_vjp
def with_loss(y: jax.Array, loss: jax.Array) -> jax.Array:
    """The identity in y, which adds `loss` to what is being minimized.

        y = y        dL/dy = dL/dy        dL/dloss := 1

    The gradient of `loss` is added whatever the rest of the network does; the value of
    the training loss stays that of the task. A loss multiplied by a constant before it
    is differentiated does not multiply this one.
    """
    del loss
    return y


def _forward(y, loss):
    return y, loss


def _backward(loss, g):
    return g, jnp.ones_like(loss)


with_loss.defvjp(_forward, _backward)
