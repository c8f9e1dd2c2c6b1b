"""Singular values of matrices and updates, against NumPy's decomposition."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from blocks.attention.grouped_query import GroupedQueryAttention
from blocks.attention.mla import LatentAttention
from blocks.ffn.mlp import MLP
from blocks.norms.rmsnorm import RMSNorm
from blocks.oracle import spectra as oracle
from blocks.parameters import ParamSpec
from experiments.spectra import head_sigma1, heads_of, sigma1, spectra

largest = jax.jit(sigma1)


def random(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize(
    "shape", [(64, 64), (3, 24, 96), (2, 3, 40, 8), (1, 5), (7, 1)]
)
@pytest.mark.parametrize("scale", [1.0, 1e-25, 1e25])
def test_sigma1_is_that_of_a_decomposition(shape, scale):
    """Also where a square would leave float32."""
    w = random(*shape) * np.float32(scale)
    np.testing.assert_allclose(largest(w), oracle.sigma1(w), rtol=1e-6)


def with_values(values, dtype=np.float32):
    n = len(values)
    u, _ = np.linalg.qr(np.random.default_rng(1).normal(size=(n, n)))
    v, _ = np.linalg.qr(np.random.default_rng(2).normal(size=(n, n)))
    return (u * np.asarray(values)) @ v.astype(dtype)


@pytest.mark.parametrize("gap", [0, 1e-7, 1e-6, 1e-5, 4e-6, 1e-4, 1e-3, 0.5])
def test_other_values_close_by_cost_a_millionth(gap):
    values = np.full(32, 1.0 - gap)
    values[0] = 1.0
    np.testing.assert_allclose(largest(with_values(values)), 1.0, rtol=2e-6)


def test_float64_stays_float64():
    with jax.enable_x64(True):
        found = largest(jnp.asarray(random(16, 16), jnp.float64))
        assert found.dtype == jnp.float64
        np.testing.assert_allclose(found, oracle.sigma1(random(16, 16)), rtol=1e-12)


def test_half_precision_is_widened_and_zero_is_zero():
    w = jnp.asarray(random(8, 4), jnp.bfloat16)
    assert largest(w).dtype == jnp.float32
    np.testing.assert_allclose(largest(w), oracle.sigma1(np.asarray(w)), rtol=1e-6)
    np.testing.assert_array_equal(largest(jnp.zeros((2, 3, 3))), [0, 0])
    assert np.isnan(largest(jnp.full((3, 3), jnp.nan)))


@pytest.mark.parametrize("n_kv_heads", [4, 2, 1])
def test_scores_of_a_head_stretch_by_the_product_of_its_kernels(n_kv_heads):
    q, k = random(12, 4 * 5), random(12, n_kv_heads * 5, seed=1)
    found = jax.jit(head_sigma1, static_argnums=(2, 3, 4))(q, k, 4, n_kv_heads, 5)
    expected = oracle.head_sigma1(q, k, 4, n_kv_heads, 5)
    np.testing.assert_allclose(found, expected, rtol=2e-6)
    assert len(set(np.round(expected, 4))) == 4


def test_heads_are_known_where_queries_and_keys_are_one_kernel_each():
    rngs = nnx.Rngs(0)
    model = nnx.Dict(
        some=GroupedQueryAttention(8, 4, n_kv_heads=2, rngs=rngs),
        ffn=MLP(8, 16, rngs=rngs),
        latent=LatentAttention(
            8, 2, q_rank=None, kv_rank=4, d_rope=2, latent_norm=RMSNorm, rngs=rngs
        ),
    )
    assert heads_of(model) == {"some": (4, 2, 2)}


@pytest.fixture(scope="module")
def found():
    """Two layers with attention, feed-forward, experts and a gain; and what is said."""
    shapes = {
        "attn/branch/q/kernel": (6, 8),
        "attn/branch/k/kernel": (6, 4),
        "attn/branch/v/kernel": (6, 4),
        "attn/branch/o/kernel": (8, 6),
        "ffn/branch/up/kernel": (3, 6, 10),  # of three experts
        "ffn/branch/down/kernel": (3, 10, 6),
    }
    specs = {
        f"blocks/layers/{path}": ParamSpec("matrix", (2, *shape), len(shape) - 1)
        for path, shape in shapes.items()
    }
    specs["blocks/layers/norm/gain"] = ParamSpec("gain", (2, 6), 1)
    specs["head/kernel"] = ParamSpec("head", (6, 9))
    params = {p: random(*s.shape, seed=i) for i, (p, s) in enumerate(specs.items())}
    updates = {p: 0.1 * random(*x.shape, seed=9) for p, x in params.items()}
    heads = {"blocks/layers/attn/branch": (4, 2, 2)}
    said = jax.jit(lambda p, u: spectra(p, u, specs, heads))(params, updates)
    return params, updates, jax.device_get(said)


def test_of_matrices_only_there_are_spectra(found):
    _, _, said = found
    kinds = {name.split("/")[0] for name in said}
    assert kinds == {
        "sigma1", "frobenius", "stable_rank", "update_sigma1", "update_ratio",
        "update_norm", "sigma1_product", "head_sigma1",
    }  # fmt: skip
    assert sum(name.startswith("sigma1/") for name in said) == 6
    assert sum(name.startswith("update_norm/") for name in said) == 8


@pytest.mark.parametrize("name", ["attn/branch/q", "ffn/branch/up"])
def test_each_matrix_and_its_update(found, name):
    params, updates, said = found
    path = f"blocks/layers/{name}/kernel"
    w, u = params[path], updates[path]
    sigma, norm = oracle.sigma1(w), oracle.frobenius(w)
    expected = {
        "sigma1": sigma,
        "frobenius": norm,
        "stable_rank": norm**2 / sigma**2,
        "update_sigma1": oracle.sigma1(u),
        "update_ratio": np.sqrt((u**2).mean((-2, -1)) / (w**2).mean((-2, -1))),
        # as a gradient norm: experts together
        "update_norm": np.sqrt((u**2).reshape(2, -1).sum(1)),
    }
    for quantity, value in expected.items():
        assert said[f"{quantity}/{path}"].shape == value.shape
        np.testing.assert_allclose(said[f"{quantity}/{path}"], value, rtol=2e-6)


def test_products_of_maps_that_follow_each_other(found):
    params, _, said = found
    at = "blocks/layers/"

    def product(*paths):
        return np.prod(
            [oracle.sigma1(params[f"{at}{p}/kernel"]) for p in paths], axis=0
        )

    np.testing.assert_allclose(
        said[f"sigma1_product/{at}attn/branch/o_v"],
        product("attn/branch/o", "attn/branch/v"),
        rtol=2e-6,
    )
    np.testing.assert_allclose(
        said[f"sigma1_product/{at}ffn/branch/down_up"],
        product("ffn/branch/down", "ffn/branch/up"),
        rtol=2e-6,
    )
    heads = said[f"head_sigma1/{at}attn/branch/q_k"]
    assert heads.shape == (2, 4)
    q, k = (params[f"{at}attn/branch/{name}/kernel"][1] for name in "qk")
    np.testing.assert_allclose(heads[1], oracle.head_sigma1(q, k, 4, 2, 2), rtol=2e-6)
