"""What every feed-forward part promises. Each conf/ffn/*.yaml is found and tested."""

import functools
import inspect
from pathlib import Path

import hydra
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jax.test_util import check_grads
from omegaconf import OmegaConf

from blocks.ffn.moe.hash_router import HashRouter
from blocks.linear import Linear
from blocks.norms.rmsnorm import RMSNorm
from blocks.parameters import layout_of
from experiments.parts import Part

CONF = Path(__file__).parents[3] / "conf" / "ffn"
CHOICES = sorted(path.stem for path in CONF.glob("*.yaml"))
D_MODEL, D_FF, TOKENS = 8, 12, 10


@pytest.fixture(autouse=True)
def numbered_tokens(monkeypatch):
    """There is no model here to say which tokens it reads: 0, 1, 2, ..."""
    monkeypatch.setattr(
        HashRouter, "tokens_of", lambda self, x: jnp.arange(len(x), dtype=jnp.int32)
    )


@pytest.fixture(params=CHOICES)
def choice(request):
    return request.param


@functools.cache
def built(choice):
    make = hydra.utils.instantiate(OmegaConf.load(CONF / f"{choice}.yaml"))
    return make(D_MODEL, D_FF, rngs=nnx.Rngs(0))


@pytest.fixture
def part(choice):
    """A module of the choice, with its initial values."""
    return nnx.clone(built(choice))


@pytest.fixture
def drawn(part, randomized):
    """The same with random parameters."""
    return randomized(part)


def tokens(dtype=jnp.float32, scale=1.0, seed=0, shape=(TOKENS, D_MODEL)):
    x = np.random.default_rng(seed).normal(size=shape)
    return jnp.asarray(scale * x, dtype)


def test_there_are_choices():
    assert {"mlp", "relu2", "glu", "reglu", "geglu", "swiglu", "bilinear"} <= {*CHOICES}
    assert {"gpt_oss", "moe", "moe_deepseek"} <= {*CHOICES}


def test_yaml_is_placed_in_the_model_and_names_its_source(choice):
    first, second = (CONF / f"{choice}.yaml").read_text().splitlines()[:2]
    assert first == "# @package model.ffn"
    assert second.startswith("# y = ")


def parts_of(node):
    """The node and every part nested in it."""
    yield node
    for value in node.values():
        if isinstance(value, dict):
            yield from parts_of(value)


def test_yaml_names_every_keyword_and_the_config_accepts_it(choice, node_of):
    for node in parts_of(node_of(choice)):
        made = hydra.utils.get_class(node["_target_"])
        scalars = {
            name
            for name, p in inspect.signature(made.__init__).parameters.items()
            if p.default is None or isinstance(p.default, (bool, int, float, str))
        }
        nested = {name for name, value in node.items() if isinstance(value, dict)}
        given = {name for name in node if not name.startswith("_")} - nested
        assert given == scalars - {"inner_norm"}
        assert node["_partial_"] is True
        assert set(made.traced) <= given
    Part.parse(node_of(choice), "model.ffn")


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_keeps_shape_and_dtype(part, run, dtype):
    y = run(part, tokens(dtype))
    assert (y.shape, y.dtype) == ((TOKENS, D_MODEL), dtype)


def test_equals_the_oracle(choice, node_of, drawn, run, oracle_of, assert_within):
    x = tokens()
    expected = oracle_of(node_of(choice), drawn, np.asarray(x, np.float64))
    assert_within(run(drawn, x), expected, 1e-5)


def test_equals_the_oracle_in_float64(
    choice, node_of, part, randomized, run, oracle_of, assert_within, float64
):
    module = randomized(part, dtype=jnp.float64)
    x = tokens(jnp.float64)
    expected = oracle_of(node_of(choice), module, np.asarray(x))
    y = run(module, x)
    assert y.dtype == jnp.float64
    assert_within(y, expected, 1e-12)


@settings(
    max_examples=8,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    name=st.sampled_from(CHOICES),
    n=st.integers(1, 9),
    d_model=st.integers(1, 9),
    d_ff=st.integers(1, 9) | st.none(),
    seed=st.integers(0, 100),
)
def test_equals_the_oracle_at_any_shape(
    make_ffn,
    node_of,
    randomized,
    run,
    oracle_of,
    assert_within,
    name,
    n,
    d_model,
    d_ff,
    seed,
):
    module = randomized(make_ffn(name)(d_model, d_ff, rngs=nnx.Rngs(0)), seed=seed)
    x = tokens(seed=seed, shape=(n, d_model))
    expected = oracle_of(node_of(name), module, np.asarray(x, np.float64))
    assert_within(run(module, x), expected, 2e-5)


def test_half_precision_is_close_to_float32(drawn, run, assert_within):
    # Routers decide in float32, so the chosen experts are those of the rounded tokens.
    x = tokens(jnp.bfloat16)
    graphdef, state = nnx.split(drawn)
    wide = run(nnx.merge(graphdef, state), x.astype(jnp.float32))
    assert_within(run(drawn, x), wide, 5e-2)


def test_parameters_are_float32_and_have_a_role(part):
    graphdef, state = nnx.split(part)
    specs = layout_of(lambda: nnx.merge(graphdef, state)).specs  # refuses without role
    for name, variable in nnx.to_flat_state(nnx.state(part, nnx.Param)):
        assert variable.dtype == jnp.float32, name
        assert not variable[...].weak_type, name
    for name, spec in specs.items():
        stacked = 1 if name.startswith("experts/") else 0
        assert spec.n_stacked == stacked, name
        assert len(spec.shape) - spec.n_stacked == (1 if spec.role == "bias" else 2)
        is_router = name in ("router/kernel", "shared_gate")
        assert (spec.role == "router") == is_router, name
    for name, variable in nnx.to_flat_state(nnx.state(part, nnx.Not(nnx.Param))):
        assert variable.dtype in (jnp.float32, jnp.uint32), name


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_gradient_is_finite(part, merged, dtype):
    graphdef, params, rest = nnx.split(part, nnx.Param, ...)
    weights = tokens(seed=1)

    @jax.jit
    @jax.grad
    def gradient(inputs):
        params, x = inputs
        y = merged(graphdef, params, rest)(x)
        return jnp.sum(weights * y.astype(jnp.float32))

    for scale in (0.0, 1e-20, 1e4):
        for leaf in jax.tree.leaves(gradient((params, tokens(dtype, scale)))):
            assert jnp.isfinite(leaf).all(), scale


def test_gradient_equals_central_differences(part, randomized, merged, float64):
    module = randomized(part, dtype=jnp.float64)
    graphdef, params, rest = nnx.split(module, nnx.Param, ...)
    check_grads(
        jax.jit(lambda p, x: merged(graphdef, p, rest)(x)),
        (params, tokens(jnp.float64)),
        order=1,
        modes=["rev"],
        rtol=1e-6,
        atol=1e-6,
        eps=1e-6,
    )


@pytest.mark.parametrize("width", [1, D_MODEL - 1, D_MODEL + 1])
def test_wrong_width_is_refused(part, width):
    with pytest.raises(ValueError, match=f"{D_MODEL}.*{width}"):
        part(jnp.ones((TOKENS, width)))


def test_tokens_do_not_meet(drawn, merged):
    graphdef, params, rest = nnx.split(drawn, nnx.Param, ...)
    gradient = jax.jit(
        jax.grad(lambda x: jnp.sum(merged(graphdef, params, rest)(x)[1] ** 2))
    )(tokens())
    assert (jnp.delete(gradient, 1, axis=0) == 0).all()
    assert (gradient[1] != 0).any()


def test_jit_equals_eager(drawn, run, assert_within):
    graphdef, state = nnx.split(drawn)
    x = tokens()
    assert_within(run(nnx.merge(graphdef, state), x), drawn(x), 1e-6)


def test_members_under_vmap_equal_single_ones(part, randomized, run, assert_within):
    graphdef, _ = nnx.split(part)
    members = [randomized(nnx.clone(part), seed) for seed in (1, 2)]
    stacked = jax.tree.map(lambda *a: jnp.stack(a), *[nnx.state(m) for m in members])
    xs = jnp.stack([tokens(seed=3), tokens(seed=4)])

    @jax.jit
    @jax.vmap
    def together(state, x):
        module = nnx.merge(graphdef, state)
        return module(x), nnx.state(module)

    ys, states = together(stacked, xs)
    for i, member in enumerate(members):
        assert_within(ys[i], run(member, xs[i]), 1e-5)
        for a, b in zip(
            jax.tree.leaves(states), jax.tree.leaves(nnx.state(member)), strict=True
        ):
            np.testing.assert_allclose(a[i], b, rtol=1e-6)


def test_three_scanned_equal_three_in_a_loop(
    choice, make_ffn, randomized, run, assert_within
):
    make = make_ffn(choice)
    stacked = nnx.vmap(lambda key: make(D_MODEL, D_FF, rngs=nnx.Rngs(params=key)))(
        jax.random.split(jax.random.key(0), 3)
    )
    graphdef, state = nnx.split(randomized(stacked))
    loop = [
        nnx.merge(graphdef, jax.tree.map(lambda p, i=i: p[i], state)) for i in range(3)
    ]
    x = expected = tokens()
    for module in loop:
        expected = expected + run(module, expected)

    def layer(x, own):
        module = nnx.merge(graphdef, own)
        return x + module(x), nnx.state(module)

    body = jax.checkpoint(layer, prevent_cse=False)
    y, after = jax.jit(lambda x, state: jax.lax.scan(body, x, state))(x, state)
    assert_within(y, expected, 1e-5)
    # Loads and balancing biases have moved on in both alike.
    for i, module in enumerate(loop):
        for a, b in zip(
            jax.tree.leaves(after), jax.tree.leaves(nnx.state(module)), strict=True
        ):
            np.testing.assert_allclose(a[i], b, rtol=1e-5, atol=1e-7)


def test_linear_factory_makes_every_kernel(choice, make_ffn):
    made = []

    def linear(d_in, d_out, *, use, bias, rngs):
        made.append(use)
        return Linear(d_in, d_out, use=use, bias=bias, rngs=rngs)

    part = make_ffn(choice)(D_MODEL, D_FF, linear=linear, rngs=nnx.Rngs(0))
    params = [path for path, _ in nnx.to_flat_state(nnx.state(part, nnx.Param))]
    assert len(made) == sum(path[-1] != "bias" for path in params)
    assert set(made) == {"hidden", "output"}


def test_inner_norm_is_of_the_inner_width(choice, make_ffn, run):
    part = make_ffn(choice)(D_MODEL, D_FF, inner_norm=RMSNorm, rngs=nnx.Rngs(0))
    gains = [
        v.shape
        for path, v in nnx.to_flat_state(nnx.state(part, nnx.Param))
        if path[-1] == "gain"
    ]
    assert gains
    assert gains[0][-1] == D_FF
    assert jnp.isfinite(run(part, tokens())).all()


def test_dropout_changes_no_initial_value_and_stops_outside_training(
    choice, make_ffn, part, run
):
    dropping = make_ffn(choice, dropout=0.5)(D_MODEL, D_FF, rngs=nnx.Rngs(0))
    jax.tree.map(
        np.testing.assert_array_equal,
        nnx.to_pure_dict(nnx.state(dropping, nnx.Param)),
        nnx.to_pure_dict(nnx.state(part, nnx.Param)),
    )
    whole = run(part, tokens())
    y = run(dropping, tokens())
    kept = y != 0
    assert 0.25 < kept.mean() < 0.75
    np.testing.assert_allclose(y[kept], 2 * whole[kept], rtol=1e-5, atol=1e-9)
    still = make_ffn(choice, dropout=0.5)(D_MODEL, D_FF, rngs=nnx.Rngs(0))
    still.dropout.is_training = False
    np.testing.assert_array_equal(run(still, tokens()), whole)
