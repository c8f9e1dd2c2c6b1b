import jax.numpy as jnp
import numpy as np
import pytest

from blocks.parameters import ParamSpec
from experiments.optimizers.sgd import SGD

SPECS = {"kernel": ParamSpec("matrix", (1, 2)), "bias": ParamSpec("bias", (2,))}


def one(count):
    del count
    return jnp.float32(1)


@pytest.mark.parametrize(
    "nesterov, expected",
    # By hand, rate 1, momentum 0.5, gradients 1, 2, 4: m = 1, 2.5, 5.25.
    [(False, [-1, -2.5, -5.25]), (True, [-1.5, -3.25, -6.625])],
)
def test_momentum_accumulates_without_a_factor(x64, nesterov, expected):
    tx = SGD(
        learning_rate=1.0, momentum=0.5, nesterov=nesterov, clip_norm=None
    ).transform(SPECS, one)
    params = {"kernel": jnp.zeros((1, 2)), "bias": jnp.zeros(2)}
    state = tx.init(params)
    for grad, update in zip((1.0, 2.0, 4.0), expected, strict=True):
        grads = {path: jnp.full_like(p, grad) for path, p in params.items()}
        updates, state = tx.update(grads, state, params)
        for path in params:
            np.testing.assert_array_equal(
                updates[path], np.full(2, update).reshape(params[path].shape)
            )


def test_decay_does_not_enter_the_momentum(x64):
    rate, momentum, decay = 0.1, 0.9, 0.5
    tx = SGD(
        learning_rate=rate, momentum=momentum, weight_decay=decay, clip_norm=None
    ).transform(SPECS, one)
    params = {"kernel": jnp.array([[1.0, -2.0]]), "bias": jnp.array([1.0, -2.0])}
    state = tx.init(params)
    p, m = np.array([1.0, -2.0]), 0.0
    for g in (0.3, -0.2, 0.1):
        grads = {path: jnp.full_like(x, g) for path, x in params.items()}
        updates, state = tx.update(grads, state, params)
        params = {path: x + updates[path] for path, x in params.items()}
        m = momentum * m + g
        p = p - rate * (m + decay * p)
    np.testing.assert_allclose(params["kernel"][0], p, rtol=1e-14)


def test_zero_momentum_is_plain_gradient_descent(x64):
    tx = SGD(learning_rate=0.5, momentum=0.0, clip_norm=None).transform(SPECS, one)
    params = {"kernel": jnp.ones((1, 2)), "bias": jnp.ones(2)}
    state = tx.init(params)
    for g in (1.0, -3.0):
        grads = {path: jnp.full_like(x, g) for path, x in params.items()}
        updates, state = tx.update(grads, state, params)
        np.testing.assert_array_equal(updates["bias"], [-0.5 * g, -0.5 * g])
