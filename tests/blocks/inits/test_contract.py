"""What every initializer promises. Each conf/init/*.yaml is found and tested."""

import dataclasses
import inspect
import math
from pathlib import Path

import hydra
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from omegaconf import OmegaConf

from blocks.inits.truncated_normal import TruncatedNormal
from blocks.linear import USES, Linear
from blocks.oracle import inits as oracle

CONF = Path(__file__).parents[3] / "conf" / "init"
CHOICES = sorted(path.stem for path in CONF.glob("*.yaml"))
FAN_IN, FAN_OUT = 128, 512  # 2^16 draws
LAYER, N_SUBLAYERS = 3, 12
SMALL = (8, 6)
ALL = (*USES, "embedding", "bias")


@pytest.fixture(params=CHOICES)
def choice(request):
    return request.param


def load(choice):
    return hydra.utils.instantiate(OmegaConf.load(CONF / f"{choice}.yaml"))


@pytest.fixture
def init(choice):
    return load(choice)


# Several choices share a class and differ in numbers only: what is about the code is
# asked of each class once.
CLASSES = {type(init).__name__: init for init in map(load, CHOICES)}


@pytest.fixture(params=sorted(CLASSES))
def one_of_class(request):
    return CLASSES[request.param]


def keywords_of(init):
    return {f.name: getattr(init, f.name) for f in dataclasses.fields(init)}


def draw(
    init, use, shape=(FAN_IN, FAN_OUT), *, layer=LAYER, n_sublayers=N_SUBLAYERS, seed=0
):
    key = jax.random.key(seed)
    if use == "embedding":
        return init.embedding(key, shape)
    if use == "bias":
        return init.bias(key, shape[1:], shape[0])
    return init.kernel(key, shape, use, layer=layer, n_sublayers=n_sublayers)


def assert_follows(drawn, law):
    """Mean, second and fourth moment within five standard errors; bounds exactly."""
    x = np.asarray(drawn, np.float64).ravel()
    if law == oracle.ZERO:
        assert (x == 0).all()
        return
    moments = {k: oracle.moment(law, k) for k in (2, 4, 8)}
    assert abs(x.mean()) < 5 * math.sqrt(moments[2] / x.size)
    for k in (2, 4):
        error = math.sqrt((moments[2 * k] - moments[k] ** 2) / x.size)
        assert abs((x**k).mean() - moments[k]) < 5 * error, k
    # The largest of n uniform draws misses the bound by about bound / n.
    assert np.abs(x).max() <= law.bound * (1 + 1e-6)
    if law.std is None:
        assert np.abs(x).max() > law.bound * (1 - 20 / x.size)


def test_there_are_choices():
    assert {"small", "normal", "gpt2", "xavier", "kaiming", "mup"} <= set(CHOICES)


def test_yaml_is_placed_in_the_model_and_says_its_formula(choice):
    first, second = (CONF / f"{choice}.yaml").read_text().splitlines()[:2]
    assert first == "# @package model.init"
    assert second.startswith("# ")


def test_yaml_names_every_keyword_and_check_accepts_them(choice, init):
    node = OmegaConf.to_container(OmegaConf.load(CONF / f"{choice}.yaml"))
    assert set(node) - {"_target_"} == {f.name for f in dataclasses.fields(init)}
    assert inspect.signature(init.check).parameters.keys() == keywords_of(init).keys()
    defaults = {f.name: f.default for f in dataclasses.fields(init)}
    checked = {
        k: p.default for k, p in inspect.signature(init.check).parameters.items()
    }
    assert checked == defaults
    init.check(**keywords_of(init))
    assert set(init.traced) == {
        k for k, v in defaults.items() if not isinstance(v, str)
    }


@pytest.mark.parametrize("use", ALL)
def test_moments_and_bounds_are_those_of_the_law(choice, init, use):
    assert hasattr(oracle, choice), f"blocks/oracle/inits.py has no function {choice}"
    law = getattr(oracle, choice)(
        use, FAN_IN, FAN_OUT, LAYER, N_SUBLAYERS, **keywords_of(init)
    )
    assert_follows(draw(init, use), law)


@pytest.mark.parametrize("use", USES)
def test_factors_of_depth_act_where_a_branch_ends(use):
    """Laws with numbers that no choice has."""
    numbers = {"std": 0.1, "embedding_std": 0.2, "depth_power": 0.7, "cutoff": 1.5}
    law = oracle.truncated(use, FAN_IN, FAN_OUT, LAYER, N_SUBLAYERS, **numbers)
    assert_follows(draw(TruncatedNormal(**numbers), use), law)


@pytest.mark.parametrize("is_wide", [False, True])
def test_draws_are_float32_and_a_function_of_the_key(one_of_class, is_wide):
    with jax.enable_x64(is_wide):
        for use in ALL:
            drawn = draw(one_of_class, use, SMALL)
            assert drawn.shape == (SMALL[1:] if use == "bias" else SMALL), use
            assert (drawn.dtype, drawn.weak_type) == (jnp.float32, False), use
            np.testing.assert_array_equal(drawn, draw(one_of_class, use, SMALL))
            if drawn.any():
                assert (draw(one_of_class, use, SMALL, seed=1) != drawn).any(), use


def test_layer_and_depth_may_be_traced(one_of_class):
    @jax.jit
    def traced(layer, n_sublayers):
        depth = {"layer": layer, "n_sublayers": n_sublayers}
        return [draw(one_of_class, use, SMALL, **depth) for use in USES]

    # One program serves every depth: what comes out must still follow it.
    for layer, n_sublayers in ((0, 2), (7, 96)):
        for use, drawn in zip(USES, traced(layer, n_sublayers), strict=True):
            same = draw(one_of_class, use, SMALL, layer=layer, n_sublayers=n_sublayers)
            np.testing.assert_allclose(drawn, same, rtol=1e-5, atol=1e-12)


def test_traced_keywords_arrive_as_tracers(one_of_class):
    init, uses = one_of_class, (*USES, "embedding")
    static = {k: v for k, v in keywords_of(init).items() if k not in init.traced}

    @jax.jit
    def draws(values):
        made = type(init)(**values, **static)
        return [draw(made, use, SMALL) for use in uses]

    start = {name: getattr(init, name) for name in init.traced}
    before = draws(start)
    for name in init.traced:
        changed = {**start, name: 2 * start[name] + 1}
        exact = type(init)(**changed, **static)
        after = draws(changed)
        for use, drawn in zip(uses, after, strict=True):
            same = draw(exact, use, SMALL)
            np.testing.assert_allclose(drawn, same, rtol=1e-5, atol=1e-12)
        assert any(
            not np.allclose(a, b, rtol=1e-3) for a, b in zip(before, after, strict=True)
        ), f"{name} changes nothing"


def test_stacked_layers_equal_layers_drawn_alone(one_of_class):
    """nnx.vmap hands every layer its index as a tracer."""
    keys = jax.random.split(jax.random.key(0), 3)

    def make(key, layer):
        return Linear(
            16, 8, use="output", init=one_of_class, layer=layer, n_sublayers=6,
            bias=True, rngs=nnx.Rngs(params=key),
        )  # fmt: skip

    stacked = nnx.vmap(make)(keys, jnp.arange(3))
    for layer in range(3):
        alone = make(keys[layer], layer)
        for name in ("kernel", "bias"):
            np.testing.assert_allclose(
                getattr(stacked, name)[...][layer],
                getattr(alone, name)[...],
                rtol=1e-6,
            )


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_check_refuses_numbers_that_make_no_network(one_of_class, bad):
    for name in one_of_class.traced:
        # An exponent may be anything finite; every other number is positive.
        if name == "depth_power" and math.isfinite(bad):
            continue
        if name == "base_width" and not math.isfinite(bad):
            continue  # an integer by its annotation
        with pytest.raises(ValueError, match=f"{name} must be .*, got {bad}"):
            one_of_class.check(**{**keywords_of(one_of_class), name: bad})
