"""A matrix' gradient: the numbers of x^T dy, computed with the longer axis last."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from blocks.wide_gradient import wide_gradient

SHAPES = [(64, 16), (16, 64), (24, 24)]


def loss(matrix, x):
    return jnp.sum(jnp.sin(x @ wide_gradient(matrix)))


def expected(matrix, x):
    """x^T cos(x W) in float64."""
    matrix, x = np.asarray(matrix, np.float64), np.asarray(x, np.float64)
    return x.T @ np.cos(x @ matrix)


def inputs(shape, dtype=np.float32):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(32, shape[0]))
    return jnp.asarray(rng.normal(size=shape), dtype), jnp.asarray(x, dtype)


@pytest.mark.parametrize("shape", SHAPES)
def test_equals_numpy(shape, float64):
    matrix, x = inputs(shape, np.float64)
    np.testing.assert_array_equal(wide_gradient(matrix), matrix)
    found = jax.jit(jax.grad(loss))(matrix, x)
    np.testing.assert_allclose(found, expected(matrix, x), rtol=1e-12, atol=1e-12)
    check_grads(loss, (matrix, x), 2, ["fwd", "rev"])


@pytest.mark.parametrize("shape", SHAPES)
def test_equals_numpy_in_a_scan_of_recomputed_layers(shape, float64):
    matrix, x = inputs(shape, np.float64)
    stack = jnp.stack([matrix, 2 * matrix])

    def total(stack):
        layer = jax.checkpoint(lambda sum, w: (sum + loss(w, x), None))
        return jax.lax.scan(layer, 0.0, stack)[0]

    found = jax.jit(jax.grad(total))(stack)
    for one, w in zip(found, stack, strict=True):
        np.testing.assert_allclose(one, expected(w, x), rtol=1e-12, atol=1e-12)


def test_members_side_by_side_are_those_alone():
    matrix, x = inputs((64, 16))
    many = jnp.stack([matrix, -matrix])
    found = jax.jit(jax.vmap(jax.grad(loss), in_axes=(0, None)))(many, x)
    np.testing.assert_allclose(found[1], expected(-matrix, x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_stays_in_its_dtype(dtype):
    matrix, x = inputs((64, 16), dtype)
    found = jax.grad(loss)(matrix, x)
    assert found.dtype == wide_gradient(matrix).dtype == dtype


def products(shape) -> list[tuple[str, str]]:
    """Shapes of the compiled products over tokens."""
    text = jax.jit(jax.grad(loss)).lower(*inputs(shape)).compile().as_text()
    pattern = r"= f32\[(\d+),(\d+)\]\S* dot\(.*lhs_contracting_dims=\{0\}"
    return re.findall(pattern, text)


@pytest.mark.parametrize("shape", [(64, 16), (16, 64)])
@pytest.mark.skipif(jax.default_backend() != "cpu", reason="it is a matter of CPUs")
def test_the_longer_axis_of_the_product_is_last(shape):
    assert products(shape) == [("16", "64")]


def test_elsewhere_the_gradient_is_left_alone(monkeypatch):
    matrix, x = inputs((64, 16))
    assert "optimization_barrier" in str(jax.make_jaxpr(jax.grad(loss))(matrix, x))
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    jax.clear_caches()
    assert "optimization_barrier" not in str(jax.make_jaxpr(jax.grad(loss))(matrix, x))
