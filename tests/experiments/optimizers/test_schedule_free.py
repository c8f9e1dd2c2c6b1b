import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from experiments.optimizers.schedule_free import evaluation_params, schedule_free


def draws(seed):
    rng = np.random.default_rng(seed)
    return {"a": jnp.asarray(rng.standard_normal((2, 3))), "b": jnp.ones(4)}


def sgd(rates):
    return optax.scale_by_schedule(lambda count: -rates[count])


def train(tx, params, grads_of, n_steps, stop=lambda state, params: None):
    state = tx.init(params)
    update = jax.jit(tx.update)
    seen = []
    for t in range(n_steps):
        updates, state = update(grads_of(t, params), state, params)
        params = optax.apply_updates(params, updates)
        seen.append(stop(state, params))
    return params, state, seen


def test_iterates_equal_the_three_sequences_in_numpy(x64):
    # arXiv 2405.15682 equations 3 to 5, with weights of the largest rate squared.
    rates = np.array([0.0, 0.05, 0.1, 0.1, 0.08])
    b1, power = 0.8, 2.0
    tx = schedule_free(
        sgd(jnp.asarray(rates)),
        lambda count: jnp.asarray(rates)[count],
        b1=b1,
        weight_power=power,
    )
    params, grads = draws(0), [draws(t) for t in range(1, 6)]
    y, state, _ = train(tx, params, lambda t, _: grads[t], 5)
    x = evaluation_params(state, y, b1)
    for path, start in params.items():
        x_, z_ = np.asarray(start), np.asarray(start)
        total = 0.0
        for t in range(5):
            z_ = z_ - rates[t] * np.asarray(grads[t][path])
            weight = rates[: t + 1].max() ** power
            total += weight
            c = weight / total if total else 0.0
            x_ = (1 - c) * x_ + c * z_
        np.testing.assert_allclose(state.z[path], z_, rtol=1e-13)
        np.testing.assert_allclose(x[path], x_, rtol=1e-12, atol=1e-15)
        np.testing.assert_allclose(y[path], b1 * x_ + (1 - b1) * z_, rtol=1e-12)


def test_it_equals_optax_at_a_constant_rate(x64):
    params, grads = draws(0), [draws(t) for t in range(1, 7)]
    base = optax.sgd(0.1)
    theirs = optax.contrib.schedule_free(base, 0.1, b1=0.7, weight_lr_power=2.0)
    ours = schedule_free(base, lambda count: jnp.float64(0.1), b1=0.7)
    y, state, _ = train(ours, params, lambda t, _: grads[t], 6)
    y_, state_, _ = train(theirs, params, lambda t, _: grads[t], 6)
    x = evaluation_params(state, y, 0.7)
    x_ = optax.contrib.schedule_free_eval_params(state_, y_)
    for path in params:
        np.testing.assert_allclose(y[path], y_[path], rtol=1e-12)
        np.testing.assert_allclose(x[path], x_[path], rtol=1e-12)


def test_a_quadratic_converges_and_its_minimum_is_a_fixed_point(x64):
    low = jnp.array([1.0, -2.0, 0.5])
    curvature = jnp.array([1.0, 0.3, 0.1])
    slope = lambda t, p: {"p": curvature * (p["p"] - low)}  # noqa: E731
    tx = schedule_free(optax.sgd(1.0), lambda count: jnp.float64(1))
    y, state, _ = train(tx, {"p": jnp.zeros(3)}, slope, 400)
    # The average of iterates that decay geometrically approaches as 1 / t.
    x = evaluation_params(state, y, 0.9)["p"]
    np.testing.assert_allclose(x, low, atol=0.05)
    np.testing.assert_allclose(state.z["p"], low, atol=0.05)
    still, _, _ = train(tx, {"p": low}, slope, 20)
    np.testing.assert_array_equal(still["p"], low)


def test_the_average_does_not_depend_on_the_unit_of_the_rate(x64):
    params, grads = draws(0), [draws(t) for t in range(1, 5)]
    rates = jnp.array([0.02, 0.1, 0.1, 0.05])
    moved = [
        train(
            schedule_free(sgd(rates), lambda count, u=unit: u * rates[count]),
            params,
            lambda t, _: grads[t],
            4,
        )[0]["a"]
        for unit in (1.0, 1e-3)
    ]
    np.testing.assert_allclose(moved[0], moved[1], rtol=1e-12)


@pytest.mark.parametrize("power, share", [(0.0, 0.5), (2.0, 1.0)])
def test_an_update_of_rate_zero_weighs_nothing_unless_the_power_is_zero(
    x64, power, share
):
    rates = jnp.array([0.0, 1.0])
    tx = schedule_free(sgd(rates), lambda count: rates[count], weight_power=power)
    ones = {"p": jnp.ones(2)}
    y, state, _ = train(tx, {"p": jnp.zeros(2)}, lambda t, _: ones, 2)
    np.testing.assert_allclose(
        evaluation_params(state, y, 0.9)["p"], -share, rtol=1e-12
    )


def test_evaluation_params_keep_the_dtype_of_the_parameters():
    params = {"p": jnp.ones(2, jnp.bfloat16)}
    state = schedule_free(optax.sgd(1.0), lambda c: 1.0).init({"p": jnp.zeros(2)})
    assert evaluation_params(state, params, 0.9)["p"].dtype == jnp.bfloat16
