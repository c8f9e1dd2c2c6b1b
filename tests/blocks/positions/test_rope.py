"""Rotary position embedding. Each conf/positions/*.yaml is found and tested."""

import inspect
import math
from pathlib import Path

import hydra
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.test_util import check_grads
from omegaconf import OmegaConf
from safetensors.flax import load_file

from blocks.oracle import positions as oracle
from blocks.positions.rope import Rope
from blocks.positions.scaling import Yarn

CONF = Path(__file__).parents[3] / "conf" / "positions"
GOLDEN = Path(__file__).parents[2] / "golden" / "attention.safetensors"
CHOICES = sorted(path.stem for path in CONF.glob("*.yaml") if path.stem != "none")


@pytest.fixture(params=CHOICES)
def choice(request):
    return request.param


@pytest.fixture
def node(choice):
    return OmegaConf.to_container(OmegaConf.load(CONF / f"{choice}.yaml"))


def test_there_are_choices():
    assert {"rope", "rope_interleaved", "rope_llama3", "rope_yarn"} <= set(CHOICES)


def test_yaml_names_every_keyword(choice, node):
    first = (CONF / f"{choice}.yaml").read_text().splitlines()[0]
    assert first == "# @package model.attention.positions"
    for part in (node, node.get("scaling") or {}):
        if not part:
            continue
        made = hydra.utils.get_class(part["_target_"])
        given = {k: v for k, v in part.items() if not k.startswith("_")}
        parameters = inspect.signature(made.__init__).parameters.values()
        assert set(given) == {p.name for p in parameters if p.default is not p.empty}
        made.check(**{k: v for k, v in given.items() if k != "scaling"})


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_every_choice_keeps_shape_and_dtype(node, dtype):
    positions = hydra.utils.instantiate(node)(16)
    q, k = positions(jnp.ones((2, 3, 5, 16), dtype), jnp.ones((2, 1, 5, 16), dtype))
    assert (q.shape, k.shape) == ((2, 3, 5, 16), (2, 1, 5, 16))
    assert q.dtype == k.dtype == dtype
    assert not jax.tree.leaves(nnx.state(positions))
    with pytest.raises(ValueError, match="expected last axis 16, got"):
        positions(jnp.ones((2, 3, 5, 1)), jnp.ones((2, 1, 5, 1)))


def test_none_takes_positions_out():
    with hydra.initialize_config_dir(str(CONF.parent), version_base=None):
        config = hydra.compose("config", ["positions=none"])
    assert config.model.attention.positions is None


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
def test_interleaved_equals_transformers(assert_within, half_tolerance, dtype):
    # DeepSeek-V3 reads pairs (2 i, 2 i + 1) and writes the two halves.
    prefix = f"units/rope_interleaved_in_half_out/{dtype}/q/"
    arrays = {
        key.removeprefix(prefix): array
        for key, array in load_file(GOLDEN).items()
        if key.startswith(prefix)
    }
    rope = Rope(8, base=100.0, layout="interleaved")

    def halves(x):
        y, _ = rope(x, x)
        return jnp.concatenate([y[..., ::2], y[..., 1::2]], axis=-1)

    y, pull = jax.vjp(halves, arrays["in.x"])
    assert y.dtype == arrays["in.x"].dtype
    assert_within(y, arrays["out"], half_tolerance[dtype])
    assert_within(pull(arrays["dy"])[0], arrays["grad.x"], half_tolerance[dtype])


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("fraction, scaling", [(1.0, None), (0.5, Yarn(factor=4.0))])
def test_options_equal_the_oracle(float64, layout, fraction, scaling):
    x = np.random.default_rng(0).normal(size=(1, 1, 7, 12))
    keywords = dict(base=300.0, layout=layout, fraction=fraction)
    y, _ = Rope(12, scaling=scaling, **keywords)(jnp.asarray(x), jnp.asarray(x))
    if scaling is not None:
        keywords["magnitude"] = 0.1 * math.log(4) + 1
        keywords["scaling"] = lambda frequency, i, d_rotary: oracle.yarn_scaling(
            frequency,
            i,
            d_rotary,
            base=300.0,
            factor=4.0,
            original_len=4096,
            beta_fast=32.0,
            beta_slow=1.0,
            truncate=True,
        )
    expected = oracle.rope(x[0, 0], **keywords)
    np.testing.assert_allclose(y[0, 0], expected, rtol=1e-12, atol=1e-13)


def test_layouts_differ_by_a_permutation_of_features():
    x = jax.random.normal(jax.random.key(0), (1, 1, 6, 8))
    order = jnp.array([0, 2, 4, 6, 1, 3, 5, 7])
    interleaved, _ = Rope(8, layout="interleaved")(x, x)
    half, _ = Rope(8)(x[..., order], x[..., order])
    np.testing.assert_array_equal(interleaved[..., order], half)


def test_the_rest_of_a_head_stands_still():
    x = jax.random.normal(jax.random.key(0), (1, 2, 6, 8))
    y, _ = Rope(8, fraction=0.5)(x, x)
    np.testing.assert_array_equal(y[..., 4:], x[..., 4:])
    # The turning part is a head of its own: frequencies of 4 features.
    alone, _ = Rope(4)(x[..., :4], x[..., :4])
    np.testing.assert_array_equal(y[..., :4], alone)


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
def test_equals_transformers(golden_units, assert_within, half_tolerance, dtype):
    arrays = golden_units(f"rope_half/{dtype}/q")
    rope = Rope(8, base=100.0)
    x = arrays["in.x"]
    y, pull = jax.vjp(lambda x: rope(x, x)[0], x)
    assert y.dtype == x.dtype
    assert_within(y, arrays["out"], half_tolerance[dtype])
    assert_within(pull(arrays["dy"])[0], arrays["grad.x"], half_tolerance[dtype])


def test_equals_the_oracle(float64):
    rng = np.random.default_rng(0)
    q, k = rng.normal(size=(1, 2, 9, 6)), rng.normal(size=(1, 1, 9, 6))
    rotated = Rope(6, base=500.0)(jnp.asarray(q), jnp.asarray(k))
    for y, x in zip(rotated, (q, k), strict=True):
        assert y.dtype == jnp.float64
        for head in range(x.shape[1]):
            expected = oracle.rope(x[0, head], base=500.0)
            np.testing.assert_allclose(y[0, head], expected, rtol=1e-12, atol=1e-13)


def test_first_half_is_paired_with_second_half():
    # Token 1: pair 0 turns by 1 radian, pair 1 by base^(-1/2) = 0.1.
    x = jnp.zeros((1, 1, 2, 4)).at[..., 1, :].set(jnp.array([1.0, 1.0, 0.0, 0.0]))
    y, _ = Rope(4, base=100.0)(x, x)
    expected = [math.cos(1), math.cos(0.1), math.sin(1), math.sin(0.1)]
    np.testing.assert_allclose(y[0, 0, 1], expected, rtol=1e-6)


@pytest.mark.parametrize("shift", [1, 7, 100])
def test_products_depend_on_the_difference_of_positions(float64, shift):
    rng = np.random.default_rng(0)
    rope = Rope(8)
    # The same two vectors at every position.
    q = jnp.asarray(np.tile(rng.normal(size=8), (1, 1, 120, 1)))
    k = jnp.asarray(np.tile(rng.normal(size=8), (1, 1, 120, 1)))
    q, k = rope(q, k)
    products = q[0, 0] @ k[0, 0].T
    moved = products[shift:, shift:]
    np.testing.assert_allclose(products[:-shift, :-shift], moved, rtol=0, atol=1e-12)
    assert abs(products[3, 0] - products[4, 0]) > 1e-3


def test_lengths_are_kept_and_position_zero_does_not_turn():
    x = jax.random.normal(jax.random.key(0), (2, 3, 11, 8))
    y, _ = Rope(8)(x, x)
    np.testing.assert_allclose(
        jnp.linalg.norm(y, axis=-1), jnp.linalg.norm(x, axis=-1), rtol=1e-5
    )
    np.testing.assert_array_equal(y[:, :, 0], x[:, :, 0])
    assert not np.allclose(y[:, :, 1], x[:, :, 1], atol=1e-2)


def test_float32_angles_are_right_far_out():
    # In bfloat16 position 4001 is 4000; rounded float32 angles drift by 1e-3 here.
    x = jnp.zeros((1, 1, 30001, 2), jnp.float32).at[..., 0].set(1.0)
    y, _ = Rope(2)(x, x)
    for position in (4001, 30000):
        expected = [math.cos(position), math.sin(position)]
        np.testing.assert_allclose(y[0, 0, position], expected, atol=1e-6)
    half, _ = Rope(2)(x.astype(jnp.bfloat16), x.astype(jnp.bfloat16))
    np.testing.assert_allclose(half.astype(jnp.float32), y, atol=4e-3)


def test_gradient_equals_central_differences(float64):
    rng = np.random.default_rng(0)
    q, k = (jnp.asarray(rng.normal(size=(1, 2, 3, 4))) for _ in range(2))
    check_grads(lambda q, k: Rope(4)(q, k), (q, k), 1, ["rev"])


def test_has_no_variables():
    assert not jax.tree.leaves(nnx.state(Rope(4)))


@pytest.mark.parametrize("d_head", [0, 1, 5])
def test_odd_head_is_refused(d_head):
    with pytest.raises(
        ValueError, match=f"d_head must be even and positive, got {d_head}"
    ):
        Rope(d_head)


@pytest.mark.parametrize("base", [1.0, 0.0, -2.0, float("inf"), float("nan")])
def test_senseless_base_is_refused(base):
    with pytest.raises(ValueError, match=f"base must be .*got {base}"):
        Rope.check(base=base)


@pytest.mark.parametrize(
    "keywords, message",
    [
        ({"layout": "pairs"}, "layout must be one of half, interleaved, got 'pairs'"),
        ({"fraction": 0.0}, "fraction must be above 0 and at most 1, got 0.0"),
        ({"fraction": 1.5}, "fraction must be above 0 and at most 1, got 1.5"),
        ({"fraction": 0.4}, "even number of features, got 0.4 of 8"),
        ({"fraction": 0.1}, "even number of features, got 0.1 of 8"),
    ],
)
def test_senseless_options_are_refused(keywords, message):
    with pytest.raises(ValueError, match=message):
        Rope(8, **keywords)


def test_wrong_width_is_refused():
    x = jnp.ones((1, 1, 3, 6))
    with pytest.raises(ValueError, match="expected last axis 4"):
        Rope(4)(x, x)
