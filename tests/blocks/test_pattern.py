"""Layers that differ: which they are, and a stack of them, equal to a loop."""

import functools
from pathlib import Path

import hydra
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from omegaconf import OmegaConf

from blocks.attention.grouped_query import GroupedQueryAttention
from blocks.ffn.mlp import MLP
from blocks.ffn.swiglu import SwiGLU
from blocks.inits.xavier import XavierGaussian
from blocks.language_model import LanguageModel
from blocks.layer_parts import kinds_of
from blocks.norms.rmsnorm import RMSNorm
from blocks.parameters import layout_of
from blocks.pattern import EveryNth, First, Listed, Pattern
from blocks.placement import POST, PRE
from blocks.placements.mix import Mix
from blocks.residual.add import Add
from blocks.residual_mlp import ResidualMLP
from blocks.stack import REMAT
from blocks.state import Running

CONF = Path(__file__).parents[2] / "conf" / "pattern"
D_MODEL, SHAPE = 8, (2, 5)

# -- which layers ----------------------------------------------------------------------


def chosen(pattern, n_layers):
    return [i for i in range(n_layers) if pattern.chosen(i, n_layers)]


def test_every_nth_is_the_last_of_each_group():
    # Gemma 3 27B: global attention in layers 5, 11, 17 ...; Llama 4: 3, 7, 11 ...
    assert chosen(EveryNth(every=6), 20) == [5, 11, 17]
    assert chosen(EveryNth(every=4), 12) == [3, 7, 11]
    assert chosen(EveryNth(every=1), 3) == [0, 1, 2]
    assert chosen(EveryNth(every=6), 5) == []


def test_first_is_a_fraction_and_at_least_some():
    assert chosen(First(), 5) == [0]
    assert chosen(First(at_least=3), 61) == [0, 1, 2]  # DeepSeek-V3
    assert chosen(First(fraction=0.25, at_least=0), 12) == [0, 1, 2]  # Mix-LN
    assert chosen(First(fraction=0.25, at_least=0), 3) == []


def test_listed_parts_are_each_in_the_layers_of_their_own():
    pattern = Listed(attention_in=(1, 9), ffn_in=(0, 2), ffn=MLP, attention=SwiGLU)
    assert [sorted(pattern.at(i, 3)) for i in range(3)] == [
        ["ffn"],
        ["attention"],
        ["ffn"],
    ]
    assert chosen(pattern, 4) == [0, 1, 2]
    # Norms go with the sub-layer they are in front of; without a list every second.
    pattern = Listed(ffn_in=(0,), ffn_norm=RMSNorm, placement=PRE, attn_norm=RMSNorm)
    assert [sorted(pattern.at(i, 2)) for i in range(2)] == [
        ["ffn_norm"],
        ["attn_norm", "placement"],
    ]


def test_what_is_beside_a_pattern_is_in_the_layers_that_it_leaves():
    beside = Listed(attention_in=(0, 2), ffn_in=(3,), attention=MLP, ffn=MLP)
    pattern = Listed(attention_in=(1, 2), attention=SwiGLU, beside=beside)
    expected = [
        {"attention": MLP},
        {"attention": SwiGLU},
        {"attention": SwiGLU},  # of both: its own wins
        {"ffn": MLP},
        {},
    ]
    assert [pattern.at(i, 5) for i in range(5)] == expected
    further = EveryNth(every=5, ffn=MLP)
    beside = Listed(attention_in=(0,), attention=MLP, beside=further)
    assert First(ffn=SwiGLU, beside=beside).at(4, 5) == {"ffn": MLP}


def test_layers_with_different_parts_in_one_place_are_different_kinds():
    parts = dict(ffn=MLP, attention=GroupedQueryAttention, placement=PRE)
    beside = Listed(ffn_in=(1, 3), ffn=functools.partial(MLP, bias=True))
    pattern = Listed(ffn_in=(2,), ffn=SwiGLU, beside=beside)
    kinds = kinds_of(4, pattern, parts, ("attn", "ffn"))
    assert len(set(kinds)) == 3
    assert kinds[1] == kinds[3]


def test_a_pattern_of_ones_own_says_which_layers_it_means():
    with pytest.raises(TypeError, match="chosen"):
        Pattern()


@pytest.mark.parametrize(
    "pattern, wrong, message",
    [
        (EveryNth, dict(every=0), "every must be at least 1, got 0"),
        (First, dict(fraction=1.5), "fraction must be from 0 to 1, got 1.5"),
        (First, dict(at_least=-1), "at_least must not be negative, got -1"),
        (Listed, dict(ffn_in=(0, -1)), "ffn_in must be numbers of layers, .* got -1"),
    ],
)
def test_wrong_values_are_refused(pattern, wrong, message):
    with pytest.raises(ValueError, match=message):
        pattern.check(**wrong)


@pytest.mark.parametrize("choice", sorted(p.stem for p in CONF.glob("*.yaml")))
def test_yaml_makes_a_pattern_without_parts(choice):
    path = CONF / f"{choice}.yaml"
    assert path.read_text().splitlines()[0] == "# @package model.pattern"
    pattern = hydra.utils.instantiate(OmegaConf.load(path))
    assert isinstance(pattern, Pattern)
    assert pattern.at(0, 12) == {}


def test_only_the_parts_that_are_given_are_replaced():
    parts = dict(ffn=MLP, attention=GroupedQueryAttention, placement=PRE)
    pattern = EveryNth(every=2, ffn=SwiGLU)
    assert pattern.at(1, 4) == {"ffn": SwiGLU}
    assert pattern.at(0, 4) == {}
    kinds = kinds_of(4, pattern, parts, ("attn", "ffn"))
    assert kinds[0] == kinds[2] != kinds[1] == kinds[3]
    # Everywhere the same: one stack.
    assert kinds_of(4, EveryNth(every=1, ffn=SwiGLU), parts, ("attn", "ffn")) is None
    assert kinds_of(4, None, parts, ("attn", "ffn")) is None


def test_a_pattern_without_parts_is_refused():
    with pytest.raises(ValueError, match=r"^pattern: no part differs in its layers"):
        kinds_of(4, EveryNth(every=2), dict(ffn=MLP, placement=PRE), ("attn", "ffn"))


def test_layers_of_another_placement_are_another_kind():
    parts = dict(ffn=MLP, placement=Mix(fraction=0.5))
    kinds = kinds_of(4, None, parts, ("ffn",))
    assert kinds[0] == kinds[1] != kinds[2] == kinds[3]


# -- a stack of them -------------------------------------------------------------------

# Layers 0 .. 4: a a b a a, with a window and another feed-forward in layer 2.
MIDDLE = EveryNth(
    every=3, attention=functools.partial(GroupedQueryAttention, window=2), ffn=SwiGLU
)


def factory(n_layers=5, **keywords):
    settings = dict(
        n_layers=n_layers,
        n_heads=2,
        d_ff=12,
        norm=RMSNorm,
        attention=GroupedQueryAttention,
        ffn=MLP,
        residual=Add(),
        placement=PRE,
        init=XavierGaussian(),
        pattern=MIDDLE,
    )
    return functools.partial(LanguageModel, 11, D_MODEL, **settings | keywords)


def layout_and_params(make, seed=0):
    layout = layout_of(lambda: make(rngs=nnx.Rngs(0)))
    rng = np.random.default_rng(seed)
    params = {}
    for path, spec in layout.specs.items():
        width = spec.shape[-1] if spec.role == "matrix" else 1
        params[path] = rng.normal(size=spec.shape) / np.sqrt(width)
    return layout, params


def single_layers(params, places):
    """Per layer its parameters, without the layer axis."""
    layers = {}
    for place, indices in places.items():
        prefix = f"blocks/{place}/"
        for row, layer in enumerate(indices):
            layers[layer] = {
                path.removeprefix(prefix): x[row]
                for path, x in params.items()
                if path.startswith(prefix)
            }
    return [layers[i] for i in sorted(layers)]


def places_of(make):
    return nnx.eval_shape(lambda: make(rngs=nnx.Rngs(0))).blocks.places


def test_places_name_the_layers_in_order():
    assert {k: list(v) for k, v in places_of(factory(7)).items()} == {
        "layers_0_0": [0, 3],
        "layers_0_1": [1, 4],
        "layers_0_2": [2, 5],
        "layers_1_0": [6],
    }
    assert list(places_of(factory(7, pattern=None))) == ["layers"]


def test_every_parameter_has_its_layers_as_first_axis():
    make = factory(7)
    layout = layout_of(lambda: make(rngs=nnx.Rngs(0)))
    for place, layers in places_of(make).items():
        specs = {p: s for p, s in layout.specs.items() if f"/{place}/" in p}
        assert specs
        for spec in specs.values():
            assert (spec.shape[0], spec.n_stacked) == (len(layers), 1)
    gates = {
        p.split("/")[1] for p in layout.specs if p.endswith("ffn/branch/gate/kernel")
    }
    assert gates == {"layers_0_2"}


@pytest.mark.parametrize("n_layers", [3, 5, 7])
def test_a_patterned_stack_equals_a_loop_over_its_blocks(float64, n_layers):
    make = factory(n_layers, dtype="float64")
    layout, params = layout_and_params(make)
    places = places_of(make)
    # Blocks of both kinds, from models of one layer each.
    kinds = [
        factory(1, pattern=None),
        factory(1, pattern=EveryNth(every=1, **MIDDLE.parts)),
    ]
    single = [layout_of(lambda k=k: k(rngs=nnx.Rngs(0)).blocks) for k in kinds]
    x = jax.random.normal(jax.random.key(0), (10, D_MODEL))

    @jax.jit
    def scanned(params):
        y, measured = layout.merge(params, {}).blocks(
            x, SHAPE, stream_taps=jnp.zeros((n_layers, 2))
        )
        return y, measured

    @jax.jit
    def looped(params):
        y, rows = x, []
        for i, own in enumerate(single_layers(params, places)):
            own = {f"layers/{k}": v[None] for k, v in own.items()}
            blocks = single[MIDDLE.chosen(i, n_layers)].merge(own, {})
            y, measured = blocks(y, SHAPE, stream_taps=jnp.zeros((1, 2)))
            rows.append(measured)
        return y, jax.tree.map(lambda *r: jnp.concatenate(r), *rows)

    (y, measured), (expected, rows) = scanned(params), looped(params)
    np.testing.assert_allclose(y, expected, rtol=0, atol=1e-12 * np.abs(expected).max())
    # Rows are in the order of the layers, whatever stack they come from.
    assert measured.keys() == rows.keys()
    for name, want in rows.items():
        assert want.shape == (n_layers, 2)
        np.testing.assert_allclose(measured[name], want, rtol=1e-11, err_msg=name)


class Numbering(Add):
    """Adds to the stream the square of the number of the sub-layer, and no branch."""

    class Joint(nnx.Module):
        def read(self, state, i):
            return state, None

        def write(self, state, branch, kept, i):
            return state + 0 * branch + jnp.asarray(i, state.dtype) ** 2

    def make_joint(self, d_model, *, site, post_norm=None, rngs):
        return Numbering.Joint()


@pytest.mark.parametrize("n_layers", [5, 7])
def test_every_block_is_told_its_own_number(n_layers):
    layout, params = layout_and_params(factory(n_layers, residual=Numbering()))
    x = jnp.zeros((10, D_MODEL))
    y, _ = jax.jit(lambda p: layout.merge(p, {}).blocks(x, SHAPE))(params)
    np.testing.assert_array_equal(y, sum(i**2 for i in range(2 * n_layers)))


def test_gradient_taps_are_in_layer_order():
    # The gradient of a sum in the stream after the last sub-layer is one per entry.
    make = functools.partial(
        ResidualMLP,
        D_MODEL,
        n_layers=4,
        d_ff=12,
        norm=RMSNorm,
        ffn=MLP,
        residual=Add(),
        placement=Mix(fraction=0.5, final_norm=False),
        init=XavierGaussian(),
    )
    layout, params = layout_and_params(make)
    x = jax.random.normal(jax.random.key(0), (3, D_MODEL))

    @jax.jit
    @jax.grad
    def taps(taps):
        return jnp.sum(layout.merge(params, {})(x, taps)[0])

    found = taps(jnp.zeros((4, 1)))
    np.testing.assert_allclose(found[3, 0], 3 * D_MODEL, rtol=1e-5)
    assert (found > 0).all()


def test_every_remat_setting_gives_the_same_gradients():
    tokens = np.random.default_rng(0).integers(0, 11, (2, 5))
    results = {}
    for remat in set(REMAT) - {"auto"}:
        layout, params = layout_and_params(factory(4, remat=remat))

        def loss(params, layout=layout):
            return layout.merge(params, {}).loss(tokens)[0]

        results[remat] = jax.jit(jax.value_and_grad(loss))(params)
    expected, wanted = results.pop("everything")
    for value, gradient in results.values():
        np.testing.assert_allclose(value, expected, rtol=1e-6)
        for path, want in wanted.items():
            atol = 1e-5 * np.abs(want).max()
            np.testing.assert_allclose(gradient[path], want, rtol=0, atol=atol)


class Counting(nnx.Module):
    """The identity; counts its calls and keeps the sum of its input."""

    def __init__(self, d_model, *, rngs):
        del d_model, rngs
        self.calls = Running(jnp.zeros((), jnp.float32))
        self.total = Running(jnp.zeros((), jnp.float32))

    def __call__(self, x):
        self.calls[...] += 1
        self.total[...] = jax.lax.stop_gradient(jnp.sum(x))
        return x


def test_state_stays_with_its_layer():
    make = factory(5, norm=RMSNorm, ffn_norm=Counting)
    layout, params = layout_and_params(make)
    _, rest = layout.split(make(rngs=nnx.Rngs(0)))
    tokens = np.random.default_rng(0).integers(0, 11, (2, 5))

    @jax.jit
    def run(params, rest):
        model = layout.merge(params, rest)
        _, measured = model.hidden(tokens, jnp.zeros((5, 2)))
        return layout.split(model)[1], model.blocks.places and measured

    after, _ = run(params, rest)
    calls = [v for k, v in after.items() if k.endswith("calls")]
    assert sum(len(c) for c in calls) == 5
    assert all((c == 1).all() for c in calls)
    totals = np.concatenate([v for k, v in after.items() if k.endswith("total")])
    assert len(set(totals.tolist())) == 5  # every layer saw its own stream


def test_a_layer_starts_the_same_with_and_without_a_pattern():
    def queries(pattern):
        make = factory(4, pattern=pattern)
        layout = layout_of(lambda: make(rngs=nnx.Rngs(0)))
        params, _ = layout.split(jax.jit(lambda: make(rngs=nnx.Rngs(0)))())
        layers = single_layers(params, places_of(make))
        return [layer["attn/branch/q/kernel"] for layer in layers]

    for plain, patterned in zip(queries(None), queries(MIDDLE), strict=True):
        np.testing.assert_array_equal(plain, patterned)


def test_a_pattern_of_placements_is_mix_ln():
    post_first = First(fraction=0.25, at_least=0, placement=POST)
    for make in (
        factory(8, pattern=post_first),
        factory(8, pattern=None, placement=Mix()),
    ):
        specs = layout_of(lambda make=make: make(rngs=nnx.Rngs(0))).specs
        posts = [
            s.shape[0]
            for p, s in specs.items()
            if p.endswith("attn_joint/post_norm/gain")
        ]
        pres = [s.shape[0] for p, s in specs.items() if p.endswith("attn/in_norm/gain")]
        assert (posts, pres) == ([2], [6])
