"""What only LayerNorm promises."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from blocks.norms.layernorm import LayerNorm


def test_vectors_with_gain_and_bias(check_vectors, norm_vectors):
    norm = LayerNorm(4, eps=1e-6, rngs=nnx.Rngs(0))
    check_vectors(norm, norm_vectors["vectors"]["layernorm"])


def test_vectors_without_parameters(check_vectors, norm_vectors):
    norm = LayerNorm(4, gain=False, bias=False, rngs=nnx.Rngs(0))
    assert not jax.tree.leaves(nnx.state(norm, nnx.Param))
    check_vectors(norm, norm_vectors["vectors"]["layernorm_plain"])


@pytest.mark.parametrize("rows", ["normal", "offset", "large", "tiny", "zeros_const"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
def test_equals_torch(check_golden, dtype, rows):
    norm = LayerNorm(16, rngs=nnx.Rngs(0))
    case = f"torch_layer_norm/{dtype}/{rows}"
    check_golden(norm, case, bit_equal=dtype != "fp32")


@pytest.mark.parametrize(
    "x, y, atol",
    # By hand: mean 1, variance 2.5; mean 5, variance 5; mean 3, variance 3.5.
    [
        ((2, -1, 3, 0), (0.632455, -1.264911, 1.264911, -0.632455), 1e-6),
        ((2, 4, 6, 8), (-1.341641, -0.447214, 0.447214, 1.341641), 1e-6),
        ((1, 2, 3, 6), (-1.07, -0.53, 0, 1.60), 5e-3),
    ],
)
def test_numbers_by_hand(x, y, atol):
    norm = LayerNorm(4, eps=1e-6, rngs=nnx.Rngs(0))
    np.testing.assert_allclose(norm(jnp.array(x, jnp.float32)), y, rtol=0, atol=atol)


def test_two_features_keep_only_their_order():
    # (1, 3): mean 2, variance 1; 1 / sqrt(1 + 1e-5) = 0.999995.
    y = LayerNorm(2, rngs=nnx.Rngs(0))(jnp.array([[1.0, 3.0], [3.0, 1.0]]))
    expected = [[-0.999995, 0.999995], [0.999995, -0.999995]]
    np.testing.assert_allclose(y, expected, rtol=1e-6)


@pytest.mark.parametrize("mean", [1000.0, 3000.0, 30000.0])
def test_variance_survives_a_large_mean(mean):
    # mean(x^2) - mean(x)^2 in float32 gives +-500 and +-1000 at mean 3000.
    norm = LayerNorm(4, eps=1e-6, rngs=nnx.Rngs(0))
    y = norm(jnp.array([mean + 0.5, mean - 0.5, mean + 1, mean - 1]))
    np.testing.assert_allclose(y, [0.632455, -0.632455, 1.264910, -1.264910], atol=2e-6)


def test_a_constant_vector_maps_to_the_bias():
    norm = LayerNorm(4, rngs=nnx.Rngs(0))
    norm.bias.set_value(jnp.array([0.1, -0.2, 0.3, 0.0]))
    np.testing.assert_array_equal(norm(jnp.full(4, 7.0)), norm.bias[...])


def test_shifting_and_scaling_the_input_scales_eps(float64):
    # f_eps(c x + s) = f_(eps / c^2)(x)
    x = jnp.asarray(np.random.default_rng(0).normal(size=8) * 1e-3)
    scaled = LayerNorm(8, eps=1e-5, rngs=nnx.Rngs(0))(10 * x + 3)
    plain = LayerNorm(8, eps=1e-7, rngs=nnx.Rngs(0))(x)
    np.testing.assert_allclose(scaled, plain, rtol=1e-10)


@pytest.mark.parametrize(
    "keywords, roles", [({"bias": False}, ["gain"]), ({}, ["bias", "gain"])]
)
def test_bias_can_be_left_out(keywords, roles):
    state = nnx.state(LayerNorm(4, **keywords, rngs=nnx.Rngs(0)), nnx.Param)
    found = [v.get_metadata()["role"] for _, v in nnx.to_flat_state(state)]
    assert sorted(found) == roles


@pytest.mark.parametrize("eps", [0.0, -1e-5, 1e-25, float("inf"), float("nan")])
def test_eps_that_cannot_protect_the_root_is_refused(eps):
    with pytest.raises(ValueError, match="eps must be"):
        LayerNorm.check(eps=eps)
    with pytest.raises(ValueError, match="eps must be"):
        LayerNorm(4, eps=eps, rngs=nnx.Rngs(0))


def test_gradient_at_zero_is_finite_at_the_smallest_eps():
    norm = LayerNorm(4, eps=1e-24, rngs=nnx.Rngs(0))
    assert jnp.isfinite(jax.grad(lambda x: norm(x)[0])(jnp.zeros(4))).all()
