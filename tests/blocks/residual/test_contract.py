"""What every residual scheme promises. Each conf/residual/*.yaml is found and tested.

The oracle of a scheme is found by the stem of its YAML, or by the module of its class,
in blocks.oracle.residual and blocks.oracle.streams; how it is written stands there.
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
from omegaconf import OmegaConf

from blocks.block import Block
from blocks.ffn.mlp import MLP
from blocks.norms.rmsnorm import RMSNorm
from blocks.oracle import residual as single_stream_oracle
from blocks.oracle import streams as streams_oracle
from blocks.parameters import ROLES, layout_of
from blocks.placement import Placement
from blocks.site import Site
from blocks.stack import Stack

CONF = Path(__file__).parents[3] / "conf" / "residual"
CHOICES = sorted(path.stem for path in CONF.glob("*.yaml"))
D_MODEL, N_STREAMS = 6, 3
TOKENS = 3
N_LAYERS, PER_BLOCK = 2, 2
NAMES = ("attn", "ffn")
# It is the arithmetic that is tested, not the compiler: half the time.
QUICKLY = {"xla_backend_optimization_level": 0}


def node_of(choice):
    """The YAML; of several streams three: mixings of two are symmetric."""
    node = OmegaConf.to_container(OmegaConf.load(CONF / f"{choice}.yaml"))
    return node | ({"n_streams": N_STREAMS} if "n_streams" in node else {})


@functools.cache
def scheme_of(choice):
    return hydra.utils.instantiate(node_of(choice))


@functools.cache
def takes_post_norm(choice):
    """The post_norms a scheme can be made with: None, RMSNorm, or either."""
    possible = []
    for post_norm in (None, RMSNorm):
        try:
            nnx.eval_shape(lambda n=post_norm: joint(scheme_of(choice), 0, n))
        except ValueError as error:
            if "post_norm" not in str(error):
                raise
        else:
            possible.append(post_norm)
    assert possible
    return tuple(possible)


def joint(scheme, i, post_norm):
    layer, index = divmod(i, PER_BLOCK)
    return scheme.make_joint(
        D_MODEL,
        site=Site(NAMES[index], layer, N_LAYERS, index, PER_BLOCK),
        post_norm=post_norm,
        rngs=nnx.Rngs(i),
    )


class Chain(nnx.Module):
    """Two blocks of two sub-layers, F_i(u) = tanh(u @ W_i), and nothing else."""

    def __init__(self, scheme, post_norm):
        self.ends = scheme.make_ends(
            D_MODEL, n_layers=N_LAYERS, norm=RMSNorm, rngs=nnx.Rngs(99)
        )
        for i in range(N_LAYERS * PER_BLOCK):
            setattr(self, f"joint_{i}", joint(scheme, i, post_norm))

    def __call__(self, x):
        """What comes out, the inputs of the branches, and the states on the way."""
        state = self.ends.open(x)
        inputs, states = [], [state]
        for i, weight in enumerate(weights()):
            own = getattr(self, f"joint_{i}")
            u, kept = own.read(state, jnp.int32(i))
            branch = jnp.tanh(u @ jnp.asarray(weight, u.dtype))
            state = own.write(state, branch, kept, jnp.int32(i))
            inputs.append(u)
            states.append(state)
        return self.ends.close(state), inputs, states


def weights():
    shape = (N_LAYERS * PER_BLOCK, D_MODEL, D_MODEL)
    return np.random.default_rng(7).normal(size=shape) / np.sqrt(D_MODEL)


def tokens(dtype=np.float32, scale=1.0):
    x = np.random.default_rng(8).normal(size=(TOKENS, D_MODEL))
    return jnp.asarray(scale * x, dtype)


@functools.cache
def chain_of(choice, post_norm=None):
    """Graph definition and parameters moved off their initial values."""

    def make():
        return nnx.split(Chain(scheme_of(choice), post_norm), nnx.Param, ...)

    chain = nnx.eval_shape(lambda: Chain(scheme_of(choice), post_norm))
    graphdef, abstract, rest = nnx.split(chain, nnx.Param, ...)
    assert not any(leaf.weak_type for leaf in jax.tree.leaves(abstract))
    assert not jax.tree.leaves(rest)
    params = jax.jit(lambda: make()[1])()
    rng = np.random.default_rng(9)
    params = jax.tree.map(
        lambda p: (p + 0.2 * rng.uniform(-1, 1, p.shape)).astype(p.dtype), params
    )
    return graphdef, params, rest


def run(choice, post_norm, params, x):
    graphdef, _, rest = chain_of(choice, post_norm)
    return nnx.merge(graphdef, params, rest)(x)


@functools.cache
def compiled(choice, post_norm=None):
    """(params, x, cotangent) -> output, inputs of branches; gradients of their product."""

    def loss(params, x, cotangent):
        y, inputs, _ = run(choice, post_norm, params, x)
        return jnp.sum(cotangent * y.astype(cotangent.dtype)), (y, inputs)

    step = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)
    return jax.jit(step, compiler_options=QUICKLY)


def cotangent(dtype=np.float32):
    return jnp.asarray(np.random.default_rng(6).normal(size=(TOKENS, D_MODEL)), dtype)


def oracle_run(choice, params, x):
    """The same chain by the functions of the oracle."""
    node = node_of(choice)
    keywords = {k: v for k, v in node.items() if not k.startswith("_")}
    keywords |= dict(n_layers=N_LAYERS, per_block=PER_BLOCK)
    keywords |= dict(n_sublayers=N_LAYERS * PER_BLOCK)
    names = (choice, node["_target_"].split(".")[-2])

    def find(what, default=None):
        for module in (single_stream_oracle, streams_oracle):
            for name in names:
                if hasattr(module, f"{name}_{what}"):
                    return getattr(module, f"{name}_{what}")
        assert default, f"no oracle {names[0]}_{what} or {names[1]}_{what}"
        return default

    write = find("write")
    read = find("read", lambda state, params, i, **_: (state, None))
    open_ = find("open", lambda x, params, **_: x)
    close = find("close", lambda state, params, **_: state)
    own = {}
    for path, variable in nnx.to_flat_state(params):
        name = "/".join(map(str, path[1:]))
        value = np.asarray(variable[...], np.float64)
        own.setdefault(path[0], {})[name] = value
    state, inputs = open_(x, own.get("ends", {}), **keywords), []
    for i, weight in enumerate(weights()):
        mine = own.get(f"joint_{i}", {})
        u, kept = read(state, mine, i, **keywords)
        state = write(state, np.tanh(u @ weight), kept, mine, i, **keywords)
        inputs.append(u)
    return close(state, own.get("ends", {}), **keywords), inputs


@pytest.fixture(params=CHOICES)
def choice(request):
    return request.param


def test_there_are_choices():
    assert {"add", "hc", "hc_static", "mhc", "frac"} <= set(CHOICES)


# -- configuration ---------------------------------------------------------------------


def test_yaml_is_placed_at_the_scheme_of_the_model(choice):
    first = (CONF / f"{choice}.yaml").read_text().splitlines()[0]
    assert first == "# @package model.residual"


def test_yaml_names_every_keyword_that_a_config_can_set(choice):
    node = node_of(choice)
    scheme = hydra.utils.get_class(node["_target_"])
    given = {k: v for k, v in node.items() if not k.startswith("_")}
    keywords = inspect.signature(scheme.__init__).parameters
    accepted = {
        name
        for name, p in keywords.items()
        if p.default is None or isinstance(p.default, (bool, int, float, str))
    }
    assert accepted <= set(given) <= set(keywords)
    plain = {
        k: v
        for k, v in given.items()
        if k in inspect.signature(scheme.check).parameters
    }
    scheme.check(**plain)
    assert set(scheme.traced) <= set(given)


def test_post_norm_is_refused_by_schemes_of_several_streams(choice):
    scheme = scheme_of(choice)
    if hasattr(scheme, "n_streams"):
        with pytest.raises(ValueError, match="post_norm.*n_streams=3"):
            joint(scheme, 0, RMSNorm)


def test_parameters_are_float32_and_have_a_role(choice):
    _, params, _ = chain_of(choice, takes_post_norm(choice)[0])
    for path, variable in nnx.to_flat_state(params):
        assert variable.dtype == jnp.float32, path
        assert variable.get_metadata()["role"] in ROLES, path


# -- the arithmetic --------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_equals_the_oracle(choice, dtype):
    tolerance = {"float32": 1e-5, "float64": 1e-12}[dtype]
    for post_norm in takes_post_norm(choice):
        _, params, _ = chain_of(choice, post_norm)
        with jax.enable_x64(dtype == "float64"):
            x = tokens(dtype)
            (_, (y, inputs)), _ = compiled(choice, post_norm)(params, x, cotangent())
        wanted, wanted_inputs = oracle_run(choice, params, np.asarray(x, np.float64))
        for a, b in zip([*inputs, y], [*wanted_inputs, wanted], strict=True):
            assert a.shape == b.shape
            assert a.dtype == dtype
            scale = max(1.0, np.abs(b).max())
            np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * scale)


def test_keeps_shapes_and_dtypes(choice):
    # A scan carries the state: nothing about it may change from layer to layer.
    for post_norm in takes_post_norm(choice):
        _, params, _ = chain_of(choice, post_norm)
        x = tokens(jnp.bfloat16)
        y, inputs, states = jax.eval_shape(
            functools.partial(run, choice, post_norm), params, x
        )
        for u in [*inputs, y]:
            assert (u.shape, u.dtype) == (x.shape, x.dtype)
        described = [jax.tree.map(lambda a: (a.shape, a.dtype), s) for s in states]
        assert described == described[:1] * len(described)


def test_bfloat16_streams_are_as_good_as_their_rounding(choice):
    post_norm = takes_post_norm(choice)[0]
    _, params, _ = chain_of(choice, post_norm)
    x = tokens(jnp.bfloat16)
    (_, (y, _)), _ = compiled(choice, post_norm)(params, x, cotangent())
    wanted, _ = oracle_run(choice, params, np.asarray(x, np.float64))
    # A rounding is 2^-8; there are four sub-layers, and branches in bfloat16.
    error = np.abs(np.asarray(y, np.float64) - wanted).max()
    assert error < 0.04 * max(1.0, np.abs(wanted).max())


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_gradient_is_finite(choice, dtype):
    post_norm = takes_post_norm(choice)[0]
    _, params, _ = chain_of(choice, post_norm)
    for scale in (0.0, 1e-20, 1e4):
        x = tokens(dtype, scale)
        _, gradient = compiled(choice, post_norm)(params, x, cotangent())
        for leaf in jax.tree.leaves(gradient):
            assert jnp.isfinite(leaf).all(), scale


def test_gradient_equals_central_differences(choice, float64):
    for post_norm in takes_post_norm(choice):
        step = compiled(choice, post_norm)
        _, params, _ = chain_of(choice, post_norm)
        params = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), params)
        at = (params, tokens(jnp.float64))
        weights = cotangent(jnp.float64)
        _, gradient = step(*at, weights)
        for seed in range(3):
            way = directions(at, seed)
            up, down = moved(at, way, 1e-5), moved(at, way, -1e-5)
            difference = step(*up, weights)[0][0] - step(*down, weights)[0][0]
            products = jax.tree.map(lambda g, w: jnp.sum(g * w), gradient, way)
            slope = sum(jax.tree.leaves(products))
            np.testing.assert_allclose(slope, difference / 2e-5, rtol=1e-6)


def directions(tree, seed):
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: rng.normal(size=leaf.shape), tree)


def moved(tree, way, step):
    return jax.tree.map(lambda leaf, w: leaf + step * w, tree, way)


def test_tokens_do_not_meet(choice):
    post_norm = takes_post_norm(choice)[0]
    _, params, _ = chain_of(choice, post_norm)
    only = cotangent() * jnp.array([[0.0], [1.0], [0.0]])
    _, (_, gradient) = compiled(choice, post_norm)(params, tokens(), only)
    assert (gradient[jnp.array([0, 2])] == 0).all()
    assert (gradient[1] != 0).any()


# -- through the stack -----------------------------------------------------------------


def make_block(choice, post_norm, *, layer, rngs, like=0):
    del like
    ffn = functools.partial(MLP, D_MODEL, 4)
    placement = Placement(post_norm=post_norm is not None)
    return Block(
        D_MODEL,
        {"ffn": (ffn, RMSNorm, placement)},
        residual=scheme_of(choice),
        layer=layer,
        n_layers=N_LAYERS,
        rngs=rngs,
    )


@functools.cache
def stack_of(choice, post_norm):
    """Layout of a stack of two blocks, and parameters for two members."""
    make = functools.partial(make_block, choice, post_norm)
    layout = layout_of(lambda: Stack(make, N_LAYERS, rngs=nnx.Rngs(0)))
    rng = np.random.default_rng(3)
    members = {}
    for path, spec in layout.specs.items():
        x = rng.normal(size=(2, *spec.shape))
        members[path] = x / 2 if spec.role == "matrix" else 0.5 + 0.3 * x
    return layout, members


def opened(choice, x):
    make = scheme_of(choice).make_ends
    layout = layout_of(
        lambda: make(D_MODEL, n_layers=N_LAYERS, norm=RMSNorm, rngs=nnx.Rngs(0))
    )
    params = {k: jnp.full(v.shape, 0.5, x.dtype) for k, v in layout.specs.items()}
    return layout.merge(params, {}).open(x)


def total(state):
    return sum(
        jnp.sum(jnp.cos(jnp.arange(leaf.size)) * leaf.reshape(-1))
        for leaf in jax.tree.leaves(state)
    )


def test_members_in_one_checkpointed_scan_equal_each_in_a_loop(choice, float64):
    post_norm = takes_post_norm(choice)[0]
    layout, members = stack_of(choice, post_norm)
    members = {k: jnp.asarray(v) for k, v in members.items()}
    single = layout_of(
        lambda: make_block(choice, post_norm, layer=jnp.int32(0), rngs=nnx.Rngs(0))
    )
    x = tokens(jnp.float64)

    def scanned(params):
        return total(layout.merge(params, {})(opened(choice, x), (1, TOKENS))[0])

    def looped(params):
        state = opened(choice, x)
        for i in range(N_LAYERS):
            own = {k.removeprefix("layers/"): v[i] for k, v in params.items()}
            block = single.merge(own, {})
            memory = block.first_memory(TOKENS, x.dtype)
            state, _, _ = block(state, memory, (1, TOKENS), jnp.int32(i))
        return total(state)

    together = jax.jit(jax.vmap(jax.value_and_grad(scanned)), compiler_options=QUICKLY)
    alone = jax.jit(jax.value_and_grad(looped), compiler_options=QUICKLY)
    values, gradients = together(members)
    for m in range(2):
        wanted, wanted_gradient = alone({k: v[m] for k, v in members.items()})
        np.testing.assert_allclose(values[m], wanted, rtol=1e-12)
        for path, want in wanted_gradient.items():
            atol = 1e-11 * (1 + np.abs(want).max())
            np.testing.assert_allclose(gradients[path][m], want, rtol=0, atol=atol)


def test_what_a_probe_sees_has_one_row_per_sublayer(choice):
    post_norm = takes_post_norm(choice)[0]
    layout, members = stack_of(choice, post_norm)
    params = {k: jnp.asarray(v[0], jnp.float32) for k, v in members.items()}

    def measured(params):
        taps = jnp.zeros((N_LAYERS, 1))
        model = layout.merge(params, {})
        return model(opened(choice, tokens()), (1, TOKENS), stream_taps=taps)[1]

    for name, values in jax.eval_shape(measured, params).items():
        assert values.shape[:2] == (N_LAYERS, 1), name
        assert values.dtype == jnp.float32, name
