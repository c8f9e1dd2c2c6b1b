"""Initializers: formulas, outside numbers, and the networks they are made for."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from blocks.ffn.mlp import MLP
from blocks.inits.kaiming import Kaiming
from blocks.inits.normal import Normal
from blocks.inits.torch_default import TorchDefault
from blocks.inits.xavier import XavierGaussian
from blocks.linear import Linear
from blocks.norms.layernorm import LayerNorm

SHAPE = (256, 1024)  # the standard deviation of 2^18 draws is known to 0.14 %


def draw(init, use="hidden", *, shape=SHAPE, n_sublayers=1, seed=0):
    key = jax.random.key(seed)
    return init.kernel(key, shape, use, layer=0, n_sublayers=n_sublayers)


def kurtosis(x):
    x = np.asarray(x, np.float64)
    return np.mean((x - x.mean()) ** 4) / x.var() ** 2


@pytest.mark.parametrize(
    "init, use, std",
    [
        (Normal(), "hidden", 0.02),
        (Normal(std=0.1), "head", 0.1),
        # sqrt(2 / (256 + 1024)) and twice that
        (XavierGaussian(), "hidden", 0.0395285),
        (XavierGaussian(gain=2.0), "output", 0.0790569),
        # sqrt(2 / 256) and sqrt(1 / 256)
        (Kaiming(), "hidden", 0.0883883),
        (Kaiming(), "output", 0.0625),
        (Kaiming(), "query", 0.0625),
        (Kaiming(), "head", 0.0625),
        # 1 / sqrt(3 * 256)
        (TorchDefault(), "hidden", 0.0360844),
        (TorchDefault(), "output", 0.0360844),
    ],
)
def test_standard_deviation(init, use, std):
    np.testing.assert_allclose(draw(init, use).std(), std, rtol=0.006)


@pytest.mark.parametrize("init", [Normal(), XavierGaussian(), Kaiming()])
def test_normal_draws_are_normal(init):
    np.testing.assert_allclose(kurtosis(draw(init)), 3.0, atol=0.05)


def test_torch_default_is_uniform_within_its_bound():
    kernel = draw(TorchDefault())
    np.testing.assert_allclose(kurtosis(kernel), 1.8, atol=0.02)
    np.testing.assert_allclose(jnp.abs(kernel).max(), 1 / 16, rtol=1e-3)
    # The standard deviation printed by torch 2.13.0 for Linear(512, 512): 0.0255.
    np.testing.assert_allclose(
        draw(TorchDefault(), shape=(512, 512)).std(), 0.0255, rtol=0.01
    )


@pytest.mark.parametrize("init", [Kaiming(), TorchDefault()])
def test_biases_of_torch(init):
    bias = init.bias(jax.random.key(0), (2**16,), 64)
    np.testing.assert_allclose(jnp.abs(bias).max(), 1 / 8, rtol=1e-3)
    np.testing.assert_allclose(bias.std(), 1 / 8 / np.sqrt(3), rtol=0.01)


@pytest.mark.parametrize("init", [Normal(), XavierGaussian()])
def test_biases_of_zero(init):
    assert (init.bias(jax.random.key(0), (64,), 4) == 0).all()


@pytest.mark.parametrize("n_layers", [1, 12, 48])
def test_gpt2_output_kernels_shrink_with_depth(n_layers):
    # GPT-2: std 0.02 / sqrt(2 n_layers) for kernels that write to the stream.
    plain = draw(Normal(), "hidden", n_sublayers=2 * n_layers)
    output = draw(Normal(), "output", n_sublayers=2 * n_layers)
    np.testing.assert_allclose(output, plain / np.sqrt(2 * n_layers), rtol=1e-5)
    same = draw(Normal(depth_power=0.0), "output", n_sublayers=2 * n_layers)
    np.testing.assert_array_equal(same, plain)


@pytest.mark.parametrize(
    "init, low, high",
    [
        # Standard deviation of h after thirty h = relu(h W), width 256: three standard
        # deviations around the geometric mean of 32 seeds drawn in NumPy.
        (Normal(std=0.01), 9.83e-30, 8.15e-29),
        (XavierGaussian(), 7.10e-06, 7.87e-05),
        (Kaiming(), 0.277, 2.03),
    ],
)
def test_thirty_relu_layers(init, low, high):
    keys = jax.random.split(jax.random.key(0), 31)
    h = jax.random.normal(keys[0], (200, 256))
    for key in keys[1:]:
        h = jax.nn.relu(
            h @ init.kernel(key, (256, 256), "hidden", layer=0, n_sublayers=30)
        )
    scale = h.max()  # squares of 1e-29 are not float32
    assert low < float((h / scale).std()) * float(scale) < high


@pytest.mark.parametrize(
    "placement, depth, low, high",
    [
        # Frobenius norm of the gradient of W1 of the last block: three standard
        # deviations around the geometric mean of 32 seeds in torch 2.13.0.
        ("post", 6, 0.0258, 0.0361),
        ("post", 24, 0.0208, 0.0456),
        ("pre", 6, 0.0148, 0.0191),
        ("pre", 24, 0.00679, 0.0117),
    ],
)
def test_last_block_gradient_of_kaiming_networks(placement, depth, low, high):
    def linear(*args, **keywords):
        return Linear(*args, init=Kaiming(), **keywords)

    rngs = nnx.Rngs(0)
    blocks = [
        MLP(64, 256, activation="relu", bias=True, linear=linear, rngs=rngs)
        for _ in range(depth)
    ]
    norm = LayerNorm(64, rngs=rngs)
    x, weights = jax.random.normal(jax.random.key(1), (2, 256, 64))

    @jax.jit
    def gradient(last):
        def loss(last):
            h = x
            for block in [*blocks[:-1], nnx.merge(graphdef, last)]:
                h = norm(h + block(h)) if placement == "post" else h + block(norm(h))
            return jnp.mean((norm(h) if placement == "pre" else h) * weights)

        return jax.grad(loss)(last)

    graphdef, last = nnx.split(blocks[-1])
    norm_of_w1 = float(jnp.linalg.norm(gradient(last)["up"]["kernel"][...]))
    assert low < norm_of_w1 < high
