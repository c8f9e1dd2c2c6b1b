import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from experiments.optimizers import averaging


def walk(n_steps, dtype=jnp.float64):
    rng = np.random.default_rng(0)
    return [{"p": jnp.asarray(rng.standard_normal(3), dtype)} for _ in range(n_steps)]


def averaged(steps, decay):
    average = averaging.init(steps[0])
    for t, params in enumerate(steps, 1):
        average = averaging.update(average, params, decay, t)
    return average["p"]


@pytest.mark.parametrize("decay", [0.0, 0.5, 0.99])
def test_weights_fall_by_the_decay_and_sum_to_one(x64, decay):
    steps = walk(6)
    weights = decay ** np.arange(5.0, -1, -1)
    expected = sum(
        w * s["p"] for w, s in zip(weights / weights.sum(), steps, strict=True)
    )
    np.testing.assert_allclose(averaged(steps, decay), expected, rtol=1e-12)


def test_it_equals_the_debiased_average_of_optax_fed_with_parameters(x64):
    steps = walk(5)
    tx = optax.ema(0.9, debias=True)
    state = tx.init(steps[0])
    for params in steps:
        theirs, state = tx.update(params, state)
    np.testing.assert_allclose(averaged(steps, 0.9), theirs["p"], rtol=1e-12)


def test_nothing_is_left_of_the_initial_parameters(x64):
    start = averaging.init({"p": jnp.full(3, 1e9)})
    first = averaging.update(start, {"p": jnp.ones(3)}, 0.999, 1)
    np.testing.assert_allclose(first["p"], 1, rtol=1e-6)


def test_a_long_horizon_is_the_plain_mean_in_float32():
    steps = walk(50, jnp.float32)
    mean = np.mean([np.asarray(s["p"], np.float64) for s in steps], axis=0)
    np.testing.assert_allclose(averaged(steps, 1 - 1e-7), mean, rtol=1e-5, atol=1e-6)


def test_the_average_of_bfloat16_is_float32_and_keeps_its_dtype_in_a_scan():
    params = {"p": jnp.ones(2, jnp.bfloat16)}

    def step(average, t):
        return averaging.update(average, params, jnp.float32(0.9), t), None

    average, _ = jax.lax.scan(step, averaging.init(params), jnp.arange(1, 4))
    assert average["p"].dtype == jnp.float32
    np.testing.assert_allclose(average["p"], 1, rtol=1e-6)


@pytest.mark.parametrize("decay", [-0.1, 1.0, float("nan")])
def test_a_decay_outside_zero_to_one_is_refused(decay):
    with pytest.raises(ValueError, match="^decay: "):
        averaging.check(decay=decay)
