"""What every normalizer promises. Each conf/norm/*.yaml is found and tested."""

import inspect
from pathlib import Path

import hydra
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.test_util import check_grads
from omegaconf import OmegaConf

from blocks.oracle import norms as oracle
from blocks.parameters import ROLES

CONF = Path(__file__).parents[3] / "conf" / "norm"
CHOICES = sorted(path.stem for path in CONF.glob("*.yaml"))
D_MODEL = 16


@pytest.fixture(params=CHOICES)
def choice(request):
    return request.param


@pytest.fixture
def make_norm(choice):
    return hydra.utils.instantiate(OmegaConf.load(CONF / f"{choice}.yaml"))


def perturbed(norm, seed=0):
    """The norm with parameters moved off their initial values, so that each shows."""
    keys = jax.random.split(jax.random.key(seed), 100)
    graphdef, params, rest = nnx.split(norm, nnx.Param, ...)
    leaves, tree = jax.tree.flatten(params)
    moved = [
        leaf + 0.2 * jax.random.uniform(key, leaf.shape, leaf.dtype, -1, 1)
        for key, leaf in zip(keys, leaves, strict=False)
    ]
    return nnx.merge(graphdef, jax.tree.unflatten(tree, moved), rest)


def test_there_are_choices():
    assert {"layernorm", "rmsnorm", "dyt", "derf"} <= set(CHOICES)


def test_yaml_is_placed_at_the_site_of_the_model(choice):
    first = (CONF / f"{choice}.yaml").read_text().splitlines()[0]
    assert first == "# @package model.norm"


def test_yaml_names_every_scalar_keyword_with_its_default(choice):
    node = OmegaConf.to_container(OmegaConf.load(CONF / f"{choice}.yaml"))
    norm = hydra.utils.get_class(node["_target_"])
    given = {k: v for k, v in node.items() if not k.startswith("_")}
    accepted = {
        name: p.default
        for name, p in inspect.signature(norm.__init__).parameters.items()
        if isinstance(p.default, (bool, int, float, str))
    }
    assert given == accepted
    norm.check(**given)
    assert set(norm.traced) <= set(given)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_keeps_shape_and_dtype(make_norm, dtype):
    x = jax.random.normal(jax.random.key(0), (2, 3, D_MODEL), dtype)
    y = make_norm(D_MODEL, rngs=nnx.Rngs(0))(x)
    assert (y.shape, y.dtype) == (x.shape, x.dtype)


def test_float64_is_computed_in_float64(make_norm, choice, float64):
    norm = perturbed(make_norm(D_MODEL, rngs=nnx.Rngs(0)))
    x = np.random.default_rng(0).normal(1.0, 2.0, (5, D_MODEL))
    y = norm(jnp.asarray(x))
    assert y.dtype == jnp.float64
    np.testing.assert_allclose(y, oracle_of(choice, norm, x), rtol=1e-12, atol=1e-13)


def test_equals_the_oracle(make_norm, choice):
    norm = perturbed(make_norm(D_MODEL, rngs=nnx.Rngs(0)))
    x = np.random.default_rng(0).normal(1.0, 2.0, (5, D_MODEL)).astype(np.float32)
    np.testing.assert_allclose(
        norm(jnp.asarray(x)),
        oracle_of(choice, norm, x.astype(np.float64)),
        rtol=1e-5,
        atol=1e-6,
    )


def oracle_of(choice, norm, x):
    """blocks.oracle.norms.<choice>, given every parameter and every static keyword."""
    function = getattr(oracle, choice, None)
    assert function, f"blocks/oracle/norms.py has no function {choice}"
    node = OmegaConf.to_container(OmegaConf.load(CONF / f"{choice}.yaml"))
    params = {
        str(path[-1]): np.asarray(v[...], np.float64)
        for path, v in nnx.to_flat_state(nnx.state(norm, nnx.Param))
    }
    accepted = set(inspect.signature(function).parameters)
    assert set(params) <= accepted, f"the oracle ignores {set(params) - accepted}"
    static = {k: v for k, v in node.items() if k in accepted}
    return function(x, **{**static, **params})


def test_parameters_are_float32_and_have_a_role(make_norm):
    state = nnx.state(make_norm(D_MODEL, rngs=nnx.Rngs(0)), nnx.Param)
    for path, variable in nnx.to_flat_state(state):
        assert variable.dtype == jnp.float32, path
        assert not variable[...].weak_type, path
        assert variable.get_metadata()["role"] in ROLES, path


@pytest.mark.parametrize("scale", [0.0, 1e-20, 1e4])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_gradient_is_finite(make_norm, scale, dtype):
    graphdef, params = nnx.split(make_norm(D_MODEL, rngs=nnx.Rngs(0)), nnx.Param)
    x = (scale * jax.random.normal(jax.random.key(0), (3, D_MODEL))).astype(dtype)
    weights = jax.random.normal(jax.random.key(1), x.shape)

    def loss(params, x):
        return jnp.sum(weights * nnx.merge(graphdef, params)(x).astype(jnp.float32))

    for gradient in jax.tree.leaves(jax.grad(loss, argnums=(0, 1))(params, x)):
        assert jnp.isfinite(gradient).all()


def test_gradient_equals_central_differences(make_norm, float64):
    norm = perturbed(make_norm(D_MODEL, rngs=nnx.Rngs(0)))
    graphdef, params = nnx.split(norm, nnx.Param)
    params = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), params)
    x = jnp.asarray(np.random.default_rng(0).normal(0.5, 1.0, (2, D_MODEL)))
    check_grads(
        jax.jit(lambda p, x: nnx.merge(graphdef, p)(x)),
        (params, x),
        order=1,
        modes=["rev"],
        atol=1e-7,
        rtol=1e-7,
        eps=1e-5,
    )


@pytest.mark.parametrize("width", [1, D_MODEL - 1, D_MODEL + 1])
def test_wrong_width_is_refused(make_norm, width):
    norm = make_norm(D_MODEL, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match=f"{D_MODEL}.*{width}"):
        norm(jnp.ones((2, width)))


def test_float16_far_above_the_range_of_its_squares(make_norm):
    norm = make_norm(D_MODEL, rngs=nnx.Rngs(0))
    x = (300 * jax.random.normal(jax.random.key(0), (8, D_MODEL))).astype(jnp.float16)
    y = norm(x).astype(jnp.float32)
    assert jnp.isfinite(y).all()
    np.testing.assert_allclose(y, norm(x.astype(jnp.float32)), rtol=0, atol=1e-2)


def test_tokens_do_not_meet(make_norm):
    norm = perturbed(make_norm(D_MODEL, rngs=nnx.Rngs(0)))
    x = jax.random.normal(jax.random.key(0), (4, D_MODEL))
    gradient = jax.grad(lambda x: jnp.sum(norm(x)[1] ** 2))(x)
    assert (gradient[jnp.array([0, 2, 3])] == 0).all()
    assert (gradient[1] != 0).any()


def test_three_stacked_and_scanned_equal_three_in_a_loop(make_norm):
    layers = [
        perturbed(make_norm(D_MODEL, rngs=nnx.Rngs(0)), seed) for seed in range(3)
    ]

    @nnx.vmap(in_axes=0, out_axes=0)
    def build(key):
        return make_norm(D_MODEL, rngs=nnx.Rngs(params=key))

    graphdef, stacked = nnx.split(build(jax.random.split(jax.random.key(0), 3)))
    same = jax.tree.map(lambda *a: jnp.stack(a), *[nnx.state(x) for x in layers])
    assert jax.tree.map(jnp.shape, stacked) == jax.tree.map(jnp.shape, same)

    x = expected = jax.random.normal(jax.random.key(1), (2, D_MODEL))
    for layer in layers:
        expected = layer(expected)
    step = lambda x, state: (nnx.merge(graphdef, state)(x), None)  # noqa: E731
    result, _ = jax.lax.scan(step, x, same)
    np.testing.assert_allclose(result, expected, rtol=1e-6, atol=1e-6)
