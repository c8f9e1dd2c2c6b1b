import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from blocks.parameters import ROLES, ParamSpec
from experiments.optimizers.roles import Role, Roles
from experiments.optimizers.schedule_free_adamw import ScheduleFreeAdamW

SPECS = {"p": ParamSpec("matrix", (2, 3))}
SETTINGS = {"learning_rate": 0.1, "b1": 0.9, "b2": 0.8, "weight_decay": 0.1}


def one(count):
    del count
    return jnp.float32(1)


def gradient(t):
    i, j = np.arange(2)[:, None], np.arange(3)
    return jnp.asarray(np.sin(1 + t + 7 * i**2 + 3 * j + (i + t) * j**2))


def start():
    return {"p": jnp.asarray(0.5 * np.cos(np.arange(2)[:, None] + 2 * np.arange(3)))}


def train(optimizer, params, grads_of, n_steps, specs=SPECS, multiplier=one):
    """The parameters held after `n_steps`, and those to evaluate."""
    tx = optimizer.transform(specs, multiplier)
    state = tx.init(params)
    update = jax.jit(tx.update)
    for t in range(n_steps):
        updates, state = update(grads_of(t, params), state, params)
        params = optax.apply_updates(params, updates)
    return params, optimizer.evaluated(state, params)


# schedulefree 1.4.1 AdamWScheduleFree(lr=0.1, betas=(0.9, 0.8), eps=1e-8,
# weight_decay=0.1, warmup_steps=0 or 3), 6 steps under torch 1.13 in float64 on `start`
# and `gradient`: the parameters in train mode, then in eval mode.
PUBLISHED = {
    0: """
        0.400361050666 -0.107478067033 -0.320013788856
        0.255579907415 -0.437898915669  0.233875254575
        0.386843790389 -0.102765830834 -0.311279464755
        0.248346540368 -0.436011212524  0.233874481467
    """,
    3: """
        0.512465618730 -0.194857697291 -0.266996285283
        0.369932790678 -0.468452553365  0.124013008490
        0.500077526171 -0.190804833760 -0.255640926930
        0.366124459629 -0.466755841279  0.122449468071
    """,
}


def published(warmup_steps):
    return np.array(PUBLISHED[warmup_steps].split(), float).reshape(2, 2, 3)


@pytest.mark.parametrize("warmup_steps", [0, 3])
def test_six_steps_equal_the_published_code(x64, warmup_steps):
    optimizer = ScheduleFreeAdamW(**SETTINGS, warmup_steps=warmup_steps, clip_norm=None)
    held, evaluated = train(optimizer, start(), lambda t, _: {"p": gradient(t)}, 6)
    y, x = published(warmup_steps)
    np.testing.assert_allclose(held["p"], y, atol=2e-12)
    np.testing.assert_allclose(evaluated["p"], x, atol=2e-12)


def test_it_equals_optax_at_a_constant_rate(x64):
    theirs = optax.contrib.schedule_free_adamw(
        0.1, b1=0.9, b2=0.8, eps=1e-8, weight_decay=0.1
    )
    params = start()
    state = theirs.init(params)
    for t in range(5):
        updates, state = theirs.update({"p": gradient(t)}, state, params)
        params = optax.apply_updates(params, updates)
    optimizer = ScheduleFreeAdamW(**SETTINGS, clip_norm=None)
    held, evaluated = train(optimizer, start(), lambda t, _: {"p": gradient(t)}, 5)
    np.testing.assert_allclose(held["p"], params["p"], rtol=1e-12)
    x = optax.contrib.schedule_free_eval_params(state, params)
    np.testing.assert_allclose(evaluated["p"], x["p"], rtol=1e-11)


def test_the_averages_come_closer_to_the_minimum_than_what_is_held(x64):
    low = jnp.array([[1.0, -2.0, 0.5], [0.1, 0.0, -1.0]])
    slope = lambda t, p: {"p": p["p"] - low}  # noqa: E731
    # Of one size whatever the slope, the steps keep circling: the average does not.
    optimizer = ScheduleFreeAdamW(learning_rate=0.05, weight_decay=0.0, b2=0.5)
    held, evaluated = train(optimizer, start(), slope, 600)
    far = [float(jnp.abs(p["p"] - low).max()) for p in (held, evaluated)]
    assert far[1] < 0.02
    assert far[1] <= far[0]


def test_a_schedule_that_starts_at_zero_moves_nothing_at_first(x64):
    ramp = lambda count: jnp.minimum(count / 4, 1)  # noqa: E731
    optimizer = ScheduleFreeAdamW(**SETTINGS, clip_norm=None)
    ones = lambda t, _: {"p": jnp.ones((2, 3))}  # noqa: E731
    held, evaluated = train(optimizer, start(), ones, 1, multiplier=ramp)
    np.testing.assert_array_equal(held["p"], start()["p"])
    np.testing.assert_array_equal(evaluated["p"], start()["p"])
    held, _ = train(optimizer, start(), ones, 3, multiplier=ramp)
    assert np.all(np.isfinite(held["p"]) & (held["p"] < start()["p"]))


def test_a_role_of_rate_zero_stays_where_it_is_and_the_others_do_not_notice(x64):
    specs = {**SPECS, "g": ParamSpec("gain", (2, 3))}
    by_name = {name: Role(decay=1.0) for name in ROLES} | {"gain": Role(rate=0.0)}
    roles = Roles(**by_name)
    optimizer = ScheduleFreeAdamW(**SETTINGS, clip_norm=None, roles=roles)
    params = {**start(), "g": jnp.ones((2, 3))}
    both = lambda t, _: {"p": gradient(t), "g": gradient(t)}  # noqa: E731
    held, evaluated = train(optimizer, params, both, 6, specs)
    np.testing.assert_array_equal(held["g"], params["g"])
    np.testing.assert_array_equal(evaluated["g"], params["g"])
    np.testing.assert_allclose(held["p"], published(0)[0], atol=2e-12)


@pytest.mark.parametrize("b1", [0.0, 1.0, -0.1, float("nan")])
def test_a_b1_that_could_not_be_divided_by_is_refused(b1):
    with pytest.raises(ValueError, match=r"^b1: .*\(0, 1\)"):
        ScheduleFreeAdamW.check(b1=b1)
