"""What only a gated DeltaNet promises; the rest is in the contract."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from blocks.attention.gated_deltanet import GatedDeltaNet, delta_rule
from blocks.norms.l2norm import L2Norm
from blocks.norms.rmsnorm import RMSNorm


def make(d_model=8, n_heads=4, **keywords):
    return GatedDeltaNet(
        d_model, n_heads, qk_norm=L2Norm, head_norm=RMSNorm, **keywords,
        rngs=nnx.Rngs(0),
    )  # fmt: skip


def unit(rng, *shape):
    x = rng.normal(size=shape)
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def test_what_was_written_last_under_a_unit_key_is_read_back():
    rng = np.random.default_rng(0)
    k, v = unit(rng, 1, 2, 5, 3), rng.normal(size=(1, 2, 5, 4))
    ones = np.ones((1, 2, 5))
    y = delta_rule(*map(jnp.asarray, (k, k, v, ones, 0.7 * ones)))
    np.testing.assert_allclose(y, v, rtol=1e-5, atol=1e-6)


def test_without_writing_nothing_is_read_and_kept_is_the_rate_of_forgetting():
    rng = np.random.default_rng(1)
    k, v = unit(rng, 1, 1, 4, 3), rng.normal(size=(1, 1, 4, 2))
    k[:] = k[:, :, :1]  # one key, read at every token
    beta = np.array([[[1.0, 0, 0, 0]]])
    kept = np.full((1, 1, 4), 0.5)
    y = delta_rule(*map(jnp.asarray, (k, k, v, beta, kept)))
    expected = v[0, 0, 0] * 0.5 ** np.arange(4)[:, None]
    np.testing.assert_allclose(y[0, 0], expected, rtol=1e-5)
    assert not np.any(delta_rule(*map(jnp.asarray, (k, k, v, 0 * beta, kept))))


def test_sizes_of_its_own_and_those_of_the_model():
    net = make(n_kv_heads=2, d_head=6)
    assert net.k.kernel.shape == (8, 2 * 6)
    assert net.v.kernel.shape == (8, 4 * 6)
    net = make(n_key_heads=2, n_value_heads=6, d_key=3, d_value=5)
    assert (net.q.kernel.shape, net.v.kernel.shape) == ((8, 6), (8, 30))
    assert (net.o.kernel.shape, net.log_rate.shape) == ((30, 8), (6,))
    x = jax.random.normal(jax.random.key(0), (6, 8))
    assert net(x, (2, 3)).shape == (6, 8)


def test_initial_rates_are_those_of_the_source():
    rates = jnp.exp(make(n_value_heads=512).log_rate[...])
    assert rates.min() > 0.0099  # a logarithm and back, in float32
    assert rates.max() < 16.001
    assert rates.mean() == pytest.approx(8, abs=1)
    assert (make().offset[...] == 1).all()


@pytest.mark.parametrize(
    "wrong, told",
    [
        ({"n_key_heads": 3}, "n_value_heads must be a multiple of n_key_heads"),
        ({"d_value": 0}, "d_value must be at least 1, got 0"),
        ({"kernel_size": 0}, "kernel_size must be at least 1, got 0"),
    ],
)
def test_impossible_sizes_are_refused(wrong, told):
    with pytest.raises(ValueError, match=told):
        make(**wrong)
