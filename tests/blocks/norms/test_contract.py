"""What every normalizer promises. Each conf/norm/*.yaml is found and tested.

Programs are compiled once per choice, mostly of one shape; examples are few and the
same in every run.
"""

import functools
import inspect
from pathlib import Path

import hydra
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from blocks.modes import set_training
from blocks.parameters import ROLES
from blocks.state import Running
from tests.norm_oracle import norm_oracle

CONF = Path(__file__).parents[3] / "conf" / "norm"
CHOICES = sorted(path.stem for path in CONF.glob("*.yaml"))
D_MODEL = 16
SHAPE = (16, D_MODEL)
HALF = {"bfloat16": 2**-8, "float16": 2**-11}  # half a unit in the last place of 1

# Most of the time goes into compilation; LLVM's own passes are half of it and more.
jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
few = settings(
    max_examples=15,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
)


@pytest.fixture(params=CHOICES)
def choice(request):
    return request.param


@functools.cache
def node_of(choice):
    return OmegaConf.to_container(OmegaConf.load(CONF / f"{choice}.yaml"))


def class_of(choice):
    return hydra.utils.get_class(node_of(choice)["_target_"])


@functools.cache
def make_norm(choice):
    return hydra.utils.instantiate(node_of(choice))


@functools.cache
def parts(choice, is_training=True):
    """graphdef, parameters and other state, as the constructor leaves them."""
    norm = make_norm(choice)(D_MODEL, rngs=nnx.Rngs(0))
    set_training(norm, is_training)
    return nnx.split(norm, nnx.Param, ...)


def moved(choice, seed=0):
    """Parameters and state off their initial values, so that each shows."""
    _, params, state = parts(choice)
    rng = np.random.default_rng(seed)

    def move(low, tree):
        return jax.tree.map(
            lambda v: (
                v + jnp.asarray(rng.uniform(low, 0.2, v.shape), v.dtype)
                if jnp.issubdtype(v.dtype, jnp.floating)
                else v
            ),
            tree,
        )

    return move(-0.2, params), move(0.0, state)  # a running variance stays positive


@functools.cache
def plain_run(choice, is_training=True):
    """run(params, state, x) -> y, new state."""
    graphdef, _, _ = parts(choice, is_training)

    def run(params, state, x):
        norm = nnx.merge(graphdef, params, state, copy=True)
        y = norm(x)
        return y, nnx.state(norm, nnx.Not(nnx.Param))

    return run


@functools.cache
def jitted_run(choice, is_training=True):
    return jit(plain_run(choice, is_training))


def oracle(choice, params, state, x, is_training=True):
    """The NumPy function, given every parameter, its keywords and its state."""
    params, state = (
        {
            "/".join(map(str, path)): np.asarray(v[...], np.float64)
            for path, v in nnx.to_flat_state(tree)
        }
        for tree in (params, state)
    )
    name, node = choice, node_of(choice)
    if "choice_0" in node:  # a switch: the oracle is that of the one taken
        taken = int(state.pop("which"))
        name, node, prefix = "", node[f"choice_{taken}"], f"choices/{taken}/"
        params = {
            k.removeprefix(prefix): v for k, v in params.items() if k.startswith(prefix)
        }
    function = norm_oracle(name, node)
    accepted = inspect.signature(function).parameters.keys()
    assert params.keys() <= accepted, f"the oracle ignores {params.keys() - accepted}"
    given = {**params, **state, "is_training": is_training}
    return function(
        np.asarray(x, np.float64), **{k: v for k, v in given.items() if k in accepted}
    )


def normal(shape=SHAPE, dtype="float32", seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), dtype)


def modes(choice):
    """Training, and evaluation where it differs."""
    norm = make_norm(choice)(D_MODEL, rngs=nnx.Rngs(0))
    return (True, False) if hasattr(norm, "is_training") else (True,)


# -- the choice ------------------------------------------------------------------------


def test_there_are_choices():
    assert {"layernorm", "rmsnorm", "batchnorm", "none", "dyt", "derf"} <= set(CHOICES)


def test_yaml_is_placed_at_the_site_of_the_model(choice):
    first, second = (CONF / f"{choice}.yaml").read_text().splitlines()[:2]
    assert first == "# @package model.norm"
    assert second.startswith("# ")


def test_yaml_names_every_scalar_keyword(choice):
    node, norm = node_of(choice), class_of(choice)
    chosen = {
        k: v for k, v in node.items() if not (k.startswith("_") or isinstance(v, dict))
    }
    parameters = inspect.signature(norm.__init__).parameters
    scalars = (bool, int, float, str)
    defaults = {k: p.default for k, p in parameters.items()}
    scalar = {k for k, v in defaults.items() if isinstance(v, scalars)}
    optional = {k for k, v in defaults.items() if v is None}
    assert scalar <= chosen.keys() <= scalar | optional
    assert "site" not in chosen  # the block says where a norm sits
    norm.check(**chosen)
    assert set(norm.traced) <= chosen.keys()
    # The choice named like the file of its class has the defaults, another has not.
    differs = {k for k in chosen if chosen[k] != defaults[k]}
    assert not differs or node["_target_"].split(".")[-2] != choice


def test_variables_are_of_known_kinds(choice):
    _, params, state = parts(choice)
    for path, variable in nnx.to_flat_state(params):
        assert variable.dtype == jnp.float32, path
        assert not variable[...].weak_type, path
        assert variable.get_metadata()["role"] in ROLES, path
    for path, variable in nnx.to_flat_state(state):
        assert isinstance(variable, Running), path
        assert variable.dtype in (jnp.float32, jnp.uint32), path


@pytest.mark.parametrize("width", [1, D_MODEL - 1, D_MODEL + 1])
def test_wrong_width_is_refused(choice, width):
    norm = make_norm(choice)(D_MODEL, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match=f"{D_MODEL}.*{width}"):
        norm(jnp.ones((2, width)))


# -- values ----------------------------------------------------------------------------


@few
@given(
    shape=st.sampled_from([(D_MODEL,), SHAPE, (2, 3, D_MODEL)]),
    scale=st.floats(0.1, 10),
    offset=st.floats(-2, 2),
    seed=st.integers(0, 99),
)
def equals_the_oracle(choice, shape, scale, offset, seed):
    params, state = moved(choice, seed)
    x = jnp.float32(scale) * (normal(shape, seed=seed) + jnp.float32(offset))
    for is_training in modes(choice):
        y, _ = jitted_run(choice, is_training)(params, state, x)
        assert (y.shape, y.dtype) == (x.shape, x.dtype)
        expected = oracle(choice, params, state, x, is_training)
        atol = 1e-5 * np.abs(expected).max()
        np.testing.assert_allclose(y, expected, rtol=1e-5, atol=atol)


def test_equals_the_oracle(choice):
    equals_the_oracle(choice)


def test_float64_is_computed_in_float64(choice, float64):
    for seed in range(3):
        params, state = moved(choice, seed)
        x = 2 * normal(SHAPE, "float64", seed) + 1
        for is_training in modes(choice):
            y, new = jitted_run(choice, is_training)(params, state, x)
            assert y.dtype == jnp.float64
            expected = oracle(choice, params, state, x, is_training)
            np.testing.assert_allclose(y, expected, rtol=1e-12, atol=1e-13)
            assert jax.tree.map(jnp.dtype, new) == jax.tree.map(jnp.dtype, state)


@pytest.mark.parametrize("dtype", HALF)
def test_half_precision_is_rounded_at_the_end(choice, dtype):
    params, state = moved(choice)
    x = normal(dtype=dtype)
    y, new = jitted_run(choice)(params, state, x)
    assert (y.shape, y.dtype) == (x.shape, x.dtype)
    assert jax.tree.map(jnp.dtype, new) == jax.tree.map(jnp.dtype, state)
    expected = oracle(choice, params, state, x)
    # Two roundings more where the gain is multiplied after the first.
    roundings = 3 if node_of(choice).get("cast_before_gain") else 1
    np.testing.assert_allclose(
        y.astype(jnp.float32),
        expected,
        rtol=1.01 * roundings * HALF[dtype],
        atol=1e-6 * np.abs(expected).max(),
    )


def test_float16_far_above_the_range_of_its_squares(choice):
    params, state = moved(choice)
    x = (300 * normal()).astype(jnp.float16)
    y, _ = jitted_run(choice)(params, state, x)
    wide, _ = jitted_run(choice)(params, state, x.astype(jnp.float32))
    assert jnp.isfinite(y).all()
    np.testing.assert_allclose(y.astype(jnp.float32), wide, rtol=2**-9, atol=1e-6)


@pytest.mark.parametrize("dtype, most", [("float32", 1e-6), ("bfloat16", 2**-7)])
def test_jit_changes_nothing(choice, dtype, most):
    params, state = moved(choice)
    x = normal(dtype=dtype)
    eager, new_eager = plain_run(choice)(params, state, x)
    jitted, new_jitted = jitted_run(choice)(params, state, x)
    eager, jitted = (np.asarray(y, np.float64) for y in (eager, jitted))
    atol = 1e-6 * np.abs(eager).max()
    np.testing.assert_allclose(jitted, eager, rtol=most, atol=atol)
    if dtype == "bfloat16":  # a tie may fall the other way, a rounding not be left out
        assert (jitted != eager).mean() < 0.02
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=1e-5), new_jitted, new_eager
    )


# -- gradients -------------------------------------------------------------------------


@functools.cache
def jitted_loss(choice, is_training=True):
    """Value, and gradient in parameters and x, of sum(weights * y)."""
    run = plain_run(choice, is_training)

    def loss(params, x, state, weights):
        y, _ = run(params, state, x)
        return jnp.sum(weights * y.astype(weights.dtype))

    return jit(jax.value_and_grad(loss, argnums=(0, 1)))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gradient_is_finite(choice, dtype):
    _, params, state = parts(choice)
    weights = normal(seed=1)
    for scale in (0.0, 1e-20, 1e4):
        x = (scale * normal()).astype(dtype)
        value, gradients = jitted_loss(choice)(params, x, state, weights)
        assert jnp.isfinite(value), scale
        assert gradients[1].dtype == x.dtype
        for gradient in jax.tree.leaves(gradients):
            assert jnp.isfinite(gradient).all(), scale


def test_gradient_equals_central_differences(choice, float64):
    params, state = moved(choice)
    params = jax.tree.map(lambda v: v.astype(jnp.float64), params)
    point = (params, normal(dtype="float64", seed=5) + 0.5)
    weights = normal(dtype="float64", seed=1)
    _, gradients = jitted_loss(choice)(*point, state, weights)
    leaves, tree = jax.tree.flatten(point)
    rng, step = np.random.default_rng(7), 1e-5
    for only in [None, *range(len(leaves))]:  # everything, and each array alone
        direction = [
            rng.normal(size=v.shape) * (only in (None, i)) for i, v in enumerate(leaves)
        ]
        value = {}
        for sign in (1, -1):
            there = [
                v + sign * step * d for v, d in zip(leaves, direction, strict=True)
            ]
            there = jax.tree.unflatten(tree, there)
            value[sign], _ = jitted_loss(choice)(*there, state, weights)
        terms = [
            np.sum(d * g)
            for d, g in zip(direction, jax.tree.leaves(gradients), strict=True)
        ]
        np.testing.assert_allclose(
            (value[1] - value[-1]) / (2 * step),
            np.sum(terms),
            rtol=1e-7,
            atol=1e-7 * (1 + np.abs(terms).sum()),
        )


# -- tokens, layers, members -----------------------------------------------------------


def test_tokens_do_not_meet(choice):
    params, state = moved(choice)
    mixes = getattr(class_of(choice), "mixes_tokens", False)
    only_token_1 = jnp.zeros(SHAPE).at[1].set(normal(seed=1)[1])
    for is_training in modes(choice):
        loss = jitted_loss(choice, is_training)
        _, (_, gradient) = loss(params, normal(), state, only_token_1)
        assert (gradient[1] != 0).any()
        others = np.delete(gradient, 1, axis=0)
        if mixes and is_training:
            assert (others != 0).any(), "mixes_tokens is set, but they do not meet"
        else:
            assert (others == 0).all()


def stack_of(choice, n=3):
    """`n` norms with values of their own; stacked, and one by one."""
    each = [moved(choice, seed) for seed in range(n)]
    return jax.tree.map(lambda *a: jnp.stack(a), *each), each


def test_built_under_vmap_it_has_one_leading_axis(choice):
    keys = jax.random.split(jax.random.key(0), 3)
    make = lambda key: make_norm(choice)(D_MODEL, rngs=nnx.Rngs(params=key))  # noqa: E731
    built = nnx.eval_shape(lambda: nnx.vmap(make)(keys))
    _, params, state = nnx.split(built, nnx.Param, ...)
    stacked, _ = stack_of(choice)
    shapes = lambda tree: jax.tree.map(lambda v: (v.shape, v.dtype), tree)  # noqa: E731
    assert shapes((params, state)) == shapes(stacked)


def test_three_stacked_and_scanned_equal_three_in_a_loop(choice):
    stacked, each = stack_of(choice)
    run = jitted_run(choice)
    x = expected = normal(seed=1)
    news = []
    for params, state in each:
        expected, new = run(params, state, expected)
        news.append(new)
    body = lambda x, layer: plain_run(choice)(*layer, x)  # noqa: E731
    scan = jit(lambda x, stacked: jax.lax.scan(body, x, stacked, length=3))
    result, new = scan(x, stacked)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)
    close(result, expected)
    jax.tree.map(close, new, jax.tree.map(lambda *a: jnp.stack(a), *news))


def test_members_of_a_vmap_equal_single_ones(choice):
    stacked, each = stack_of(choice)
    x = normal((3, *SHAPE))
    y, new = jit(jax.vmap(plain_run(choice)))(*stacked, x)
    singles = [jitted_run(choice)(*each[i], x[i]) for i in range(3)]
    close = functools.partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-6)
    jax.tree.map(close, (y, new), jax.tree.map(lambda *a: jnp.stack(a), *singles))


def test_evaluation_leaves_the_state(choice):
    params, state = moved(choice)
    # Without the attribute is_training nothing may move at all.
    _, new = jitted_run(choice, modes(choice)[-1])(params, state, normal())
    jax.tree.map(np.testing.assert_array_equal, new, state)
