import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from blocks.parameters import ParamSpec
from experiments.optimizers.adafactor import Adafactor

SPECS = {
    "kernel": ParamSpec("matrix", (4, 6)),
    "head": ParamSpec("head", (3, 5)),
    "gain": ParamSpec("gain", (5,)),
}


def one(count):
    del count
    return jnp.float32(1)


def draws(seed):
    rng = np.random.default_rng(seed)
    return {
        path: jnp.asarray(rng.standard_normal(s.shape)) for path, s in SPECS.items()
    }


def train(tx, params, grads):
    state = tx.init(params)
    update = jax.jit(tx.update)
    for g in grads:
        updates, state = update(g, state, params)
        params = optax.apply_updates(params, updates)
    return params


def test_single_parameters_train_as_under_optax_with_the_decay_times_the_rate(x64):
    rate, decay = 0.05, 0.2
    optimizer = Adafactor(
        learning_rate=rate,
        weight_decay=decay,
        clip_norm=None,
        min_dim_size_to_factor=4,
    )
    theirs = optax.adafactor(
        rate,
        min_dim_size_to_factor=4,
        weight_decay_rate=rate * decay,
        weight_decay_mask={"kernel": True, "head": True, "gain": False},
    )
    params, grads = draws(0), [draws(t) for t in range(1, 6)]
    got = train(optimizer.transform(SPECS, one), params, grads)
    expected = train(theirs, params, grads)
    for path in SPECS:
        # optax takes t^-0.8 in float32, here it is float64.
        np.testing.assert_allclose(got[path], expected[path], rtol=1e-6, atol=1e-8)


def test_a_parameter_that_starts_at_zero_moves_by_the_least_scale(x64):
    specs = {"bias": ParamSpec("bias", (3,))}
    tx = Adafactor(learning_rate=0.5, clip_norm=None).transform(specs, one)
    params = {"bias": jnp.zeros(3)}
    moved = train(tx, params, [{"bias": jnp.array([1.0, -2.0, 3.0])}])
    np.testing.assert_allclose(moved["bias"], [-5e-4, 5e-4, -5e-4], rtol=1e-12)


@pytest.mark.parametrize("key", ["clipping_threshold", "min_dim_size_to_factor"])
def test_a_threshold_of_zero_is_refused(key):
    with pytest.raises(ValueError, match=f"^{key}: .*got 0"):
        Adafactor.check(**{key: 0})
