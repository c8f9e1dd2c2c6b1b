"""The linear map: arithmetic, roles, and what it hands to its initializer."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.test_util import check_grads

from blocks.inits.kaiming import Kaiming
from blocks.inits.normal import Normal
from blocks.inits.torch_default import TorchDefault
from blocks.linear import USES, Linear


class Recorder:
    """An initializer whose draws say what it was asked."""

    def __init__(self):
        self.calls = []

    def kernel(self, key, shape, use, *, layer, n_sublayers):
        self.calls.append(("kernel", shape, use, n_sublayers))
        return jnp.full(shape, layer, jnp.float32)

    def bias(self, key, shape, fan_in):
        self.calls.append(("bias", shape, fan_in))
        return jnp.full(shape, 100 + fan_in, jnp.float32)


def roles(module):
    state = nnx.to_flat_state(nnx.state(module, nnx.Param))
    return {path[-1]: v.get_metadata()["role"] for path, v in state}


def test_equals_numpy(float64):
    rng = np.random.default_rng(0)
    x, kernel, bias = rng.normal(size=(5, 3)), rng.normal(size=(3, 4)), np.arange(4.0)
    layer = Linear(3, 4, use="hidden", bias=True, rngs=nnx.Rngs(0))
    layer.kernel.set_value(jnp.asarray(kernel))
    layer.bias.set_value(jnp.asarray(bias))
    y = layer(jnp.asarray(x))
    assert y.dtype == jnp.float64
    expected = [[sum(a * b for a, b in zip(row, col)) for col in kernel.T] for row in x]  # noqa: B905
    np.testing.assert_allclose(y, np.array(expected) + bias, rtol=1e-12)


def test_gradient_equals_central_differences(float64):
    layer = Linear(3, 4, use="hidden", bias=True, rngs=nnx.Rngs(0))
    graphdef, params = nnx.split(layer, nnx.Param)
    params = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), params)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(5, 3)))
    check_grads(
        lambda p, x: jnp.sin(nnx.merge(graphdef, p)(x)), (params, x), 1, ["rev"]
    )


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_computes_in_the_dtype_of_the_input(dtype):
    layer = Linear(8, 4, use="hidden", bias=True, init=Kaiming(), rngs=nnx.Rngs(0))
    x = jax.random.normal(jax.random.key(0), (5, 8), dtype)
    y = layer(x)
    assert (y.shape, y.dtype) == ((5, 4), dtype)
    products = {
        e.primitive.name: e.invars
        for e in jax.make_jaxpr(layer)(x).eqns
        if e.primitive.name == "dot_general"
    }
    assert [v.aval.dtype for v in products["dot_general"]] == [dtype, dtype]
    assert layer.kernel.dtype == layer.bias.dtype == jnp.float32


@pytest.mark.parametrize("use", USES)
def test_role_follows_use(use):
    expected = {"kernel": "head" if use == "head" else "matrix", "bias": "bias"}
    assert roles(Linear(3, 4, use=use, bias=True, rngs=nnx.Rngs(0))) == expected
    del expected["bias"]
    assert roles(Linear(3, 4, use=use, rngs=nnx.Rngs(0))) == expected


def test_default_initializer_is_normal():
    kernel = Linear(256, 512, use="hidden", rngs=nnx.Rngs(0)).kernel[...]
    np.testing.assert_allclose(kernel.std(), Normal().std, rtol=0.01)


def test_initializer_hears_use_and_place():
    init = Recorder()
    layer = Linear(
        3, 4, use="key", init=init, layer=7, n_sublayers=12, bias=True, rngs=nnx.Rngs(0)
    )
    assert init.calls == [("kernel", (3, 4), "key", 12), ("bias", (4,), 3)]
    assert (layer.kernel[...] == 7).all()
    assert (layer.bias[...] == 103).all()


def test_layer_may_be_traced():
    @nnx.vmap(in_axes=(0, 0), out_axes=0)
    def build(key, layer):
        rngs = nnx.Rngs(params=key)
        return Linear(3, 4, use="key", init=Recorder(), layer=layer, rngs=rngs)

    stacked = build(jax.random.split(jax.random.key(0), 3), jnp.arange(3))
    assert (stacked.kernel[...] == jnp.arange(3.0)[:, None, None]).all()


def test_a_bias_changes_no_kernel():
    def kernels(bias):
        rngs = nnx.Rngs(0)
        made = [
            Linear(4, 4, use="hidden", init=Kaiming(), bias=bias, rngs=rngs)
            for _ in range(2)
        ]
        return [np.asarray(layer.kernel[...]) for layer in made]

    (a0, a1), (b0, b1) = kernels(False), kernels(True)
    np.testing.assert_array_equal([a0, a1], [b0, b1])
    assert not np.array_equal(a0, a1)


def test_kernel_and_bias_are_drawn_independently():
    # torch.nn.Linear's bounds are the same for both, so one key would show.
    layer = Linear(
        1, 64, use="hidden", init=TorchDefault(), bias=True, rngs=nnx.Rngs(0)
    )
    correlation = np.corrcoef(layer.kernel[...][0], layer.bias[...])[0, 1]
    assert abs(correlation) < 0.5


def test_unknown_use_is_refused():
    with pytest.raises(ValueError, match="use must be one of hidden, .* got 'hiden'"):
        Linear(3, 4, use="hiden", rngs=nnx.Rngs(0))


@pytest.mark.parametrize("shape", [(5, 1), (5, 4), (2, 5, 3)])
def test_wrong_shape_is_refused(shape):
    layer = Linear(3, 4, use="hidden", rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match=r"expected \[tokens, 3\], got shape"):
        layer(jnp.ones(shape))
