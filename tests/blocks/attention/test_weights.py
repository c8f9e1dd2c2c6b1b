"""Scores to weights: against torch, and what mask, cap and sink must do."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from blocks.attention.weights import (
    attention_weights,
    check_weights,
    soft_cap,
    visible,
)
from blocks.oracle import attention as oracle

DTYPES = ["fp32", "bf16", "fp16"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_softmax_equals_torch(golden_units, assert_within, half_tolerance, dtype):
    arrays = golden_units(f"softmax/{dtype}/normal")
    y, pull = jax.vjp(lambda s: attention_weights(s, causal=False), arrays["in.x"])
    assert y.dtype == jnp.float32
    fraction = half_tolerance[dtype]
    assert_within(y, arrays["out"], fraction)
    dy = arrays["dy"].astype(jnp.float32)
    assert_within(pull(dy)[0], arrays["grad.x"], fraction)


@pytest.mark.parametrize("dtype", DTYPES)
def test_softmax_with_sinks_equals_gpt_oss(
    golden_attention, assert_within, half_tolerance, dtype
):
    arrays = golden_attention(f"units/softmax_sink/{dtype}/normal")
    y, pull = jax.vjp(
        lambda s, sinks: attention_weights(s, causal=False, sinks=sinks),
        arrays["in.x"],
        arrays["in.sinks"].astype(jnp.float32),
    )
    fraction = half_tolerance[dtype]
    assert_within(y, arrays["out"], fraction)
    d_scores, d_sinks = pull(arrays["dy"].astype(jnp.float32))
    assert_within(d_scores, arrays["grad.x"], fraction)
    assert_within(d_sinks, arrays["grad.sinks"], fraction)


@pytest.mark.parametrize("dtype", DTYPES)
def test_soft_cap_equals_gemma2(golden_attention, assert_within, half_tolerance, dtype):
    arrays = golden_attention(f"units/softcap50/{dtype}/normal")
    wide = arrays["in.x"].astype(jnp.float32)
    y, pull = jax.vjp(lambda s: soft_cap(s, 50.0), wide)
    assert_within(y, arrays["out"], half_tolerance[dtype])
    dy = arrays["dy"].astype(jnp.float32)
    assert_within(pull(dy)[0], arrays["grad.x"], half_tolerance[dtype])


# Value and derivative 1 - tanh(s / c)^2, computed by hand with ten digits.
@pytest.mark.parametrize(
    "cap, score, value, slope",
    [
        (50.0, 1.0, 0.999866688, 0.999600107),
        (50.0, 10.0, 9.868766011, 0.961042983),
        (50.0, 50.0, 38.079707798, 0.419974342),
        (50.0, 100.0, 48.201379004, 0.070650825),
        (50.0, 1000.0, 50.0, 0.0),
        (30.0, 10.0, 9.645382126, 0.896629560),
        (30.0, 100.0, 29.923739024, 0.005077603),
        (15.0, 10.0, 8.741744180, 0.660364039),
    ],
)
def test_soft_cap_by_hand(float64, cap, score, value, slope):
    found = jax.value_and_grad(soft_cap)(jnp.float64(score), cap)
    np.testing.assert_allclose(found, (value, slope), rtol=2e-9, atol=2e-9)


def test_a_window_counts_the_token_itself():
    seen = visible(5, causal=True, window=2)
    np.testing.assert_array_equal(
        seen,
        [
            [1, 0, 0, 0, 0],
            [1, 1, 0, 0, 0],
            [0, 1, 1, 0, 0],
            [0, 0, 1, 1, 0],
            [0, 0, 0, 1, 1],
        ],
    )


def test_a_chunk_begins_anew():
    np.testing.assert_array_equal(
        visible(5, causal=True, chunk=3),
        [
            [1, 0, 0, 0, 0],
            [1, 1, 0, 0, 0],
            [1, 1, 1, 0, 0],
            [0, 0, 0, 1, 0],
            [0, 0, 0, 1, 1],
        ],
    )
    both = visible(5, causal=False, chunk=3)
    np.testing.assert_array_equal(both.sum(axis=1), [3, 3, 3, 2, 2])


@pytest.mark.parametrize("window", [None, 1, 3, 50])
@pytest.mark.parametrize("chunk", [None, 1, 4])
def test_mask_equals_the_oracle(window, chunk):
    seen = visible(7, causal=True, window=window, chunk=chunk)
    for i, row in enumerate(np.asarray(seen)):
        keys = oracle.visible_keys(i, 7, causal=True, window=window, chunk=chunk)
        assert list(np.flatnonzero(row)) == keys


@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("with_sinks", [False, True])
@pytest.mark.parametrize("spread", [1.0, 1e4])
def test_masked_weights_and_their_gradients_are_exactly_zero(
    softcap, with_sinks, spread
):
    scores = spread * jax.random.normal(jax.random.key(0), (2, 6, 6))
    sinks = jnp.array([0.5, -3.0]) if with_sinks else None

    @jax.jit
    @jax.value_and_grad
    def loss(scores):
        weights = attention_weights(
            scores, causal=True, window=3, softcap=softcap, sinks=sinks
        )
        hidden = jnp.where(visible(6, causal=True, window=3), 0, weights)
        return jnp.sum(weights**2) + 1e6 * jnp.sum(jnp.abs(hidden))

    value, gradient = loss(scores)
    assert value <= 12  # nothing hidden has weight
    assert jnp.isfinite(gradient).all()
    hidden = ~visible(6, causal=True, window=3)
    assert (gradient[:, hidden] == 0).all()


def test_a_sink_takes_weight_and_scores_without_bound_do_not_overflow():
    scores = jnp.array([[[1e30, -1e30], [3.0, 3.0]]])
    weights = attention_weights(scores, causal=False, sinks=jnp.array([3.0]))
    np.testing.assert_allclose(weights[0, 0], [1, 0])
    np.testing.assert_allclose(weights[0, 1], [1 / 3, 1 / 3], rtol=1e-6)
    function = lambda *a: attention_weights(a[0], causal=False, sinks=a[1])  # noqa: E731
    drained, pull = jax.vjp(function, scores, jnp.array([2e30]))
    assert (drained == 0).all()
    for gradient in pull(jnp.ones_like(drained)):
        assert jnp.isfinite(gradient).all()


def test_gradient_equals_central_differences(float64):
    rng = np.random.default_rng(0)
    scores = jnp.asarray(rng.normal(size=(2, 4, 4)))
    sinks = jnp.asarray(rng.normal(size=2))

    @jax.jit
    def weights(scores, sinks):
        return attention_weights(scores, causal=True, softcap=1.5, sinks=sinks)

    assert weights(scores, sinks).dtype == jnp.float64
    check_grads(weights, (scores, sinks), 1, ["rev"], rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize(
    "keywords, message",
    [
        ({"window": 0}, "window must be at least 1, got 0"),
        ({"chunk": -2}, "chunk must be at least 1, got -2"),
        ({"window": 4, "causal": False}, "window .*causal, got 4"),
        ({"softcap": 0.0}, "softcap must be positive and finite, got 0.0"),
        ({"softcap": float("inf")}, "softcap must be positive and finite, got inf"),
        ({"softcap": float("nan")}, "softcap must be positive and finite, got nan"),
    ],
)
def test_senseless_values_are_refused(keywords, message):
    with pytest.raises(ValueError, match=message):
        check_weights(**keywords)
