"""Dropout: its mask, its counter, and where it is carried."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from blocks.dropout import Dropout
from blocks.modes import set_training


def seeded(rate, seed=0):
    return Dropout(rate, rngs=nnx.Rngs(seed))


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_entries_are_dropped_or_scaled(rate):
    y = np.asarray(seeded(rate)(jnp.ones((100, 100))))
    kept = y != 0
    np.testing.assert_allclose(y[kept], 1 / (1 - rate), rtol=1e-6)
    # Five standard deviations of a mean of 10^4 draws.
    assert abs(kept.mean() - (1 - rate)) < 5 * np.sqrt(rate * (1 - rate)) / 100


def test_rate_zero_is_nothing():
    dropout = seeded(0.0)
    x = jnp.ones((3, 4))
    assert dropout(x) is x
    assert not nnx.to_flat_state(nnx.state(dropout))


def test_rate_zero_takes_no_key():
    rngs = nnx.Rngs(0)
    Dropout(0.0, rngs=rngs)
    np.testing.assert_array_equal(
        jax.random.key_data(rngs.params()), jax.random.key_data(nnx.Rngs(0).params())
    )


def test_outside_training_it_is_the_identity_and_does_not_count():
    model = nnx.Sequential(seeded(0.5))
    set_training(model, False)
    x = jnp.ones((3, 4))
    assert model(x) is x
    set_training(model, True)
    np.testing.assert_array_equal(model(x), seeded(0.5)(x))


def test_every_call_draws_anew_and_a_restored_state_draws_the_same():
    x = jnp.ones((20, 20))
    dropout = seeded(0.5)
    first = dropout(x)
    graphdef, state = nnx.split(dropout)
    saved = jax.tree.map(jnp.copy, state)
    assert {v.dtype for v in jax.tree.leaves(saved)} == {jnp.dtype(jnp.uint32)}
    second, third = dropout(x), dropout(x)
    assert (first != second).any()
    assert (second != third).any()
    assert int(dropout.counter[...]) == 3
    restored = nnx.merge(graphdef, saved)
    np.testing.assert_array_equal(restored(x), second)
    np.testing.assert_array_equal(restored(x), third)


def test_seeds_draw_different_masks():
    x = jnp.ones((20, 20))
    assert (seeded(0.5, 0)(x) != seeded(0.5, 1)(x)).any()


def test_masks_of_one_seed_are_these():
    # Drawn here from uniform numbers of the folded key, which Threefry (Salmon et al.
    # 2011) fixes bit for bit: a run can be continued on another machine.
    dropout = seeded(0.5)
    dropout.key[...] = jnp.array([1, 2], jnp.uint32)
    y = np.stack([dropout(jnp.ones(16)), dropout(jnp.ones(16))])
    key = jax.random.wrap_key_data(jnp.array([1, 2], jnp.uint32), impl="threefry2x32")
    for count in (0, 1):
        uniform = jax.random.uniform(jax.random.fold_in(key, count), (16,))
        np.testing.assert_array_equal(y[count] != 0, uniform < 0.5)


def test_bfloat16_is_divided_before_it_is_rounded():
    # 1 / 0.9 is 1.109375 in bfloat16; x * that is 0.16 % low on average.
    x = jnp.linspace(1, 2, 1000).astype(jnp.bfloat16)
    y = seeded(0.1)(x)
    assert y.dtype == jnp.bfloat16
    kept = y != 0
    exact = jnp.asarray(np.asarray(x, np.float64) / 0.9, jnp.bfloat16)
    np.testing.assert_array_equal(y[kept], exact[kept])


def test_float64_is_kept(float64):
    y = seeded(0.3)(jnp.full((50,), np.pi))
    assert y.dtype == jnp.float64
    np.testing.assert_allclose(y[y != 0], np.pi / 0.7, rtol=1e-15)


@pytest.mark.parametrize("recomputed", [False, True])
def test_scanned_layers_differ_and_the_gradient_has_the_mask_of_the_value(recomputed):
    graphdef, state = nnx.split(
        nnx.vmap(lambda key: Dropout(0.5, rngs=nnx.Rngs(params=key)))(
            jax.random.split(jax.random.key(0), 3)
        )
    )
    x = jnp.ones((40, 10))

    def layer(x, own):
        dropout = nnx.merge(graphdef, own)
        return dropout(x), nnx.state(dropout)

    body = jax.checkpoint(layer, prevent_cse=False) if recomputed else layer

    @jax.jit
    def step(state, x):
        def total(x):
            y, after = jax.lax.scan(body, x, state)
            return jnp.sum(y), (y, after)

        (_, (y, after)), gradient = jax.value_and_grad(total, has_aux=True)(x)
        return y, gradient, after

    y, gradient, after = step(state, x)
    np.testing.assert_array_equal(y, gradient)
    np.testing.assert_array_equal(after["counter"][...], [1, 1, 1])
    alone = [layer(x, jax.tree.map(lambda v, i=i: v[i], state))[0] for i in range(3)]
    masks = [y != 0 for y in alone]
    assert (masks[0] != masks[1]).any()
    assert (masks[1] != masks[2]).any()
    np.testing.assert_array_equal(y != 0, masks[0] & masks[1] & masks[2])
    assert (step(after, x)[0] != y).any()


def test_members_under_vmap_draw_as_they_would_alone():
    x = jnp.ones((20,))
    graphdef, _ = nnx.split(seeded(0.5))
    states = [nnx.state(seeded(0.5, seed)) for seed in (0, 1)]
    stacked = jax.tree.map(lambda *a: jnp.stack(a), *states)
    ys = jax.vmap(lambda s: nnx.merge(graphdef, s)(x))(stacked)
    for i, seed in enumerate((0, 1)):
        np.testing.assert_array_equal(ys[i], seeded(0.5, seed)(x))
    assert (ys[0] != ys[1]).any()


@pytest.mark.parametrize("rate", [-0.1, 1.0, 1.5, float("nan")])
def test_other_rates_are_refused(rate):
    with pytest.raises(ValueError, match="dropout must be at least 0 and below 1"):
        Dropout(rate, rngs=nnx.Rngs(0))
