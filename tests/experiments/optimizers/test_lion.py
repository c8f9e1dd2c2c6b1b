import jax
import jax.numpy as jnp
import numpy as np
import optax

from blocks.parameters import ParamSpec
from experiments.optimizers.lion import Lion

SPECS = {"kernel": ParamSpec("matrix", (2, 3)), "gain": ParamSpec("gain", (3,))}


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


def test_the_sign_sees_the_average_before_its_own_update(x64):
    # By hand, b1 = 0.5, b2 = 0.75: m = 0, 1, 0.25; 0.5 m + 0.5 g = 2, -0.5, 0.375.
    tx = Lion(
        learning_rate=0.125, b1=0.5, b2=0.75, weight_decay=0.5, clip_norm=None
    ).transform(SPECS, one)
    grads = [
        {path: jnp.full(s.shape, g) for path, s in SPECS.items()}
        for g in (4.0, -2.0, 0.5)
    ]
    start = {path: jnp.full(s.shape, 8.0) for path, s in SPECS.items()}
    moved = train(tx, start, grads)
    p = 8.0
    for sign in (1, -1, 1):
        p -= 0.125 * (sign + 0.5 * p)
    np.testing.assert_array_equal(moved["kernel"], np.full((2, 3), p))
    np.testing.assert_array_equal(moved["gain"], np.full(3, 8 - 0.125))


def test_five_steps_equal_a_loop_in_numpy(x64):
    params, grads = draws(0), [draws(t) for t in range(1, 6)]
    optimizer = Lion(
        learning_rate=0.03, b1=0.8, b2=0.6, weight_decay=0.4, clip_norm=1.5
    )
    got = train(optimizer.transform(SPECS, one), params, grads)
    for path, start in params.items():
        p, m = np.asarray(start), 0.0
        for gs in grads:
            norm = np.sqrt(sum((np.asarray(g) ** 2).sum() for g in gs.values()))
            g = np.asarray(gs[path]) * min(1, 1.5 / norm)
            u = np.sign(0.8 * m + 0.2 * g)
            m = 0.6 * m + 0.4 * g
            p = p - 0.03 * (u + (0.4 if path == "kernel" else 0) * p)
        np.testing.assert_allclose(got[path], p, rtol=1e-13)


def test_rate_times_decay_is_that_of_adamw():
    from experiments.optimizers.adamw import AdamW

    lion, adamw = Lion(), AdamW()
    ours = lion.learning_rate * lion.weight_decay
    np.testing.assert_allclose(ours, adamw.learning_rate * adamw.weight_decay, rtol=0.2)
