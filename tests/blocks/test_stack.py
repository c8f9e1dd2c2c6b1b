"""The scan over blocks: equal to a loop, however it is checkpointed, with any state."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from blocks.attention.grouped_query import GroupedQueryAttention
from blocks.block import Block
from blocks.ffn.mlp import MLP
from blocks.ffn.swiglu import SwiGLU
from blocks.inits.normal import Normal
from blocks.inits.xavier import XavierGaussian
from blocks.language_model import LanguageModel
from blocks.linear import Linear
from blocks.norms.layernorm import LayerNorm
from blocks.norms.rmsnorm import RMSNorm
from blocks.parameters import layout_of
from blocks.placement import Placement
from blocks.positions.rope import Rope
from blocks.residual.add import Add
from blocks.stack import REMAT, Stack

D_MODEL = 8
SHAPE = (2, 5)  # sequences, tokens of each


def make_block(
    *,
    layer,
    rngs,
    like=0,
    norm=RMSNorm,
    ffn=MLP,
    init=None,
    placement=None,
    n_sublayers=1,
):
    linear = functools.partial(
        Linear, init=init or XavierGaussian(), layer=layer, n_sublayers=n_sublayers
    )
    attention = functools.partial(
        GroupedQueryAttention, D_MODEL, 2, linear=linear, positions=Rope
    )
    placed = placement or Placement(out_norm=True)
    return Block(
        D_MODEL,
        {
            "attn": (attention, norm, placed),
            "ffn": (functools.partial(ffn, D_MODEL, 16, linear=linear), norm, placed),
        },
        residual=Add(),
        layer=layer,
        n_layers=3,
        rngs=rngs,
    )


def make_stack(n_layers=3, remat="auto", **keywords):
    build = functools.partial(make_block, **keywords)
    return Stack(build, n_layers, remat=remat, rngs=nnx.Rngs(0))


def layout_and_params(n_layers=3, remat="auto", **keywords):
    """A stack, described, and random float32 parameters for it."""
    layout = layout_of(lambda: make_stack(n_layers, remat, **keywords))
    rng = np.random.default_rng(3)
    params = {}
    for path, spec in layout.specs.items():
        x = rng.normal(size=spec.shape)
        x = 1 + 0.3 * x if spec.role == "gain" else x / np.sqrt(spec.shape[1])
        params[path] = jnp.asarray(x, jnp.float32)
    return layout, params


@functools.cache
def fresh_params(n_layers, **keywords):
    """The initial values of a stack."""
    stack = make_stack(n_layers, **keywords)
    flat = nnx.to_flat_state(nnx.state(stack, nnx.Param))
    return {"/".join(map(str, path)): variable[...] for path, variable in flat}


def inputs(seed=0):
    rng = np.random.default_rng(seed)
    x, weights = rng.normal(size=(2, SHAPE[0] * SHAPE[1], D_MODEL))
    return jnp.asarray(x), jnp.asarray(weights)


def in_a_loop(params, rest, x, **keywords):
    """The same blocks one after the other: built singly, filled, called."""
    layout = layout_of(
        lambda: make_block(layer=jnp.int32(0), rngs=nnx.Rngs(0), **keywords)
    )
    n_layers = len(next(iter(params.values())))
    states = []
    for i in range(n_layers):

        def own(arrays, i=i):
            return {k.removeprefix("layers/"): v[i] for k, v in arrays.items()}

        block = layout.merge(own(params), own(rest))
        memory = block.first_memory(len(x), x.dtype)
        x, _, _ = block(x, memory, SHAPE, jnp.int32(i))
        states.append(layout.split(block)[1])
    return x, states


# -- the scan ------------------------------------------------------------------------


def test_scan_equals_a_loop_over_blocks(float64):
    placement = Placement(inner_norm=True, post_norm=True)
    layout, params = layout_and_params(n_layers=2, placement=placement)
    params = {path: x.astype(jnp.float64) for path, x in params.items()}
    x, weights = inputs()

    def scanned(params):
        y, measured = layout.merge(params, {})(x, SHAPE)
        assert measured == {}
        return jnp.sum(weights * y)

    def looped(params):
        return jnp.sum(weights * in_a_loop(params, {}, x, placement=placement)[0])

    value, gradient = jax.jit(jax.value_and_grad(scanned))(params)
    expected, expected_gradient = jax.jit(jax.value_and_grad(looped))(params)
    np.testing.assert_allclose(value, expected, rtol=1e-12)
    for path, wanted in expected_gradient.items():
        atol = 1e-12 * np.abs(wanted).max()
        assert atol > 0, path
        np.testing.assert_allclose(
            gradient[path], wanted, rtol=0, atol=atol, err_msg=path
        )


def test_every_remat_setting_gives_the_same_loss_and_gradients():
    x, weights = inputs()
    results = {}
    for remat in set(REMAT) - {"auto"}:  # auto is one of the others
        layout, params = layout_and_params(remat=remat)

        def loss(params, layout=layout):
            return jnp.mean(weights * layout.merge(params, {})(x, SHAPE)[0])

        results[remat] = jax.jit(jax.value_and_grad(loss))(params)
    expected_loss, expected = results.pop("everything")
    for remat, (value, gradient) in results.items():
        # Measured on CPU with jax 0.10.2: loss and gradients are equal to the bit.
        np.testing.assert_allclose(value, expected_loss, rtol=1e-6, err_msg=remat)
        for path, wanted in expected.items():
            np.testing.assert_allclose(
                gradient[path],
                wanted,
                rtol=0,
                atol=1e-6 * np.abs(wanted).max(),
                err_msg=f"{remat} {path}",
            )


def saved(remat, n_layers=3):
    """Arrays [n_layers, ...] that the backward pass of a stack reads."""
    layout, params = layout_and_params(n_layers, remat)
    x, _ = inputs()

    def pull_of(params):
        return jax.vjp(lambda p: layout.merge(p, {})(x, SHAPE)[0], params)[1]

    pull = jax.eval_shape(pull_of, params)
    return sum(
        leaf.size for leaf in jax.tree.leaves(pull) if leaf.shape[:1] == (n_layers,)
    )


def test_remat_settings_keep_different_amounts():
    assert saved("nothing") < saved("dots") < saved("everything")


def test_auto_keeps_products_up_to_24_layers_and_nothing_beyond():
    def resolved(n_layers):
        return nnx.eval_shape(lambda: make_stack(n_layers)).remat

    assert [resolved(n) for n in (1, 24, 25)] == ["dots", "dots", "nothing"]


def test_unknown_remat_is_refused():
    with pytest.raises(ValueError, match="remat.*auto.*'some'"):
        Stack(make_block, 2, remat="some", rngs=nnx.Rngs(0))


# -- initial values ------------------------------------------------------------------


def test_every_parameter_counts_one_stacked_axis():
    layout = layout_of(lambda: make_stack(n_layers=3))
    assert all(spec.n_stacked == 1 for spec in layout.specs.values())
    assert all(spec.shape[0] == 3 for spec in layout.specs.values())
    assert layout.specs["layers/ffn/branch/up/kernel"].shape == (3, D_MODEL, 16)
    single = layout_of(lambda: make_block(layer=jnp.int32(0), rngs=nnx.Rngs(0)))
    assert {"layers/" + path for path in single.specs} == layout.specs.keys()
    for path, spec in single.specs.items():
        assert layout.specs["layers/" + path].shape[1:] == spec.shape


def test_stacks_in_a_stack_count_two_axes():
    # What is stacked already (experts, say) keeps its count.
    class Experts(nnx.Module):
        names = ("experts",)

        def __init__(self, *, layer, like, rngs):
            del layer, like
            make = nnx.vmap(
                lambda key: Linear(2, 3, use="hidden", rngs=nnx.Rngs(params=key))
            )
            self.experts = make(jax.random.split(rngs.params(), 4))
            self.experts.kernel.set_metadata(n_stacked=1)

    layout = layout_of(lambda: Stack(Experts, 5, rngs=nnx.Rngs(0)))
    spec = layout.specs["layers/experts/kernel"]
    assert (spec.shape, spec.n_stacked) == ((5, 4, 2, 3), 2)


def test_a_layer_starts_the_same_at_every_depth():
    shallow, deep = fresh_params(2), fresh_params(3)
    for path, x in shallow.items():
        np.testing.assert_array_equal(x, deep[path][:2], err_msg=path)


def test_layers_start_differently():
    params = fresh_params(3)
    kernels = [x for path, x in params.items() if path.endswith("kernel")]
    assert len(kernels) == 6
    for x in kernels:
        for i, j in ((0, 1), (0, 2), (1, 2)):
            assert (x[i] != x[j]).mean() > 0.99


def test_another_ffn_leaves_the_attention_as_it_was():
    mlp, swiglu = fresh_params(2), fresh_params(2, ffn=SwiGLU)
    attention = {path for path in mlp if path.startswith("layers/attn/")}
    assert len(attention) == 6  # q, k, v, o, in_norm, out_norm
    assert {path for path in swiglu if path.startswith("layers/attn/")} == attention
    for path in attention:
        np.testing.assert_array_equal(mlp[path], swiglu[path], err_msg=path)


def test_another_attention_leaves_the_ffn_as_it_was():
    def drawing_more(*sizes, rngs, **keywords):
        rngs.params()  # an attention with one map more
        return GroupedQueryAttention(*sizes, rngs=rngs, **keywords)

    def params_with(attention):
        model = LanguageModel(
            7,
            D_MODEL,
            n_layers=2,
            n_heads=2,
            d_ff=16,
            norm=LayerNorm,
            attention=attention,
            ffn=MLP,
            residual=Add(),
            placement=Placement(),
            init=XavierGaussian(),
            rngs=nnx.Rngs(0),
        )
        return dict(nnx.to_flat_state(nnx.state(model, nnx.Param)))

    plain, other = params_with(GroupedQueryAttention), params_with(drawing_more)
    assert plain.keys() == other.keys()
    for path, variable in plain.items():
        same = (variable[...] == other[path][...]).all()
        assert same == (path[:4] != ("blocks", "layers", "attn", "branch")), path


def test_depth_power_reaches_output_kernels_only():
    # 2 n_layers sub-layers: GPT-2's 1 / sqrt(2 L) with depth_power 1/2.
    n_layers = 8
    make = functools.partial(
        LanguageModel,
        64,
        32,
        n_layers=n_layers,
        n_heads=2,
        d_ff=128,
        norm=RMSNorm,
        attention=GroupedQueryAttention,
        ffn=SwiGLU,
        residual=Add(),
        placement=Placement(),
        init=Normal(std=0.02, embedding_std=0.05, depth_power=0.5),
    )
    layout = layout_of(lambda: make(rngs=nnx.Rngs(0)))
    params, _ = layout.split(make(rngs=nnx.Rngs(1)))
    expected = {
        "blocks/layers/attn/branch/q/kernel": 0.02,
        "blocks/layers/attn/branch/k/kernel": 0.02,
        "blocks/layers/attn/branch/v/kernel": 0.02,
        "blocks/layers/attn/branch/o/kernel": 0.02 / 4,
        "blocks/layers/ffn/branch/gate/kernel": 0.02,
        "blocks/layers/ffn/branch/up/kernel": 0.02,
        "blocks/layers/ffn/branch/down/kernel": 0.02 / 4,
        "head/kernel": 0.02,
        "table": 0.05,
    }
    assert {k for k, s in layout.specs.items() if s.role != "gain"} == set(expected)
    for path, std in expected.items():
        x = np.asarray(params[path], np.float64)
        # The standard deviation of n normal numbers is known to 1 / sqrt(2 n).
        four_sigma = 4 / np.sqrt(2 * x.size)
        np.testing.assert_allclose(x.std(), std, rtol=four_sigma, err_msg=path)


# -- non-trained state ---------------------------------------------------------------


class Counting(nnx.Module):
    """The identity; keeps the mean of its input, counts its calls, learns a gain."""

    def __init__(self, d_model, *, rngs):
        del rngs
        self.gain = nnx.Param(jnp.ones(d_model, jnp.float32), role="gain")
        self.mean = nnx.BatchStat(jnp.zeros(d_model, jnp.float32))
        self.calls = nnx.BatchStat(jnp.zeros((), jnp.int32))

    def __call__(self, x):
        mean = jnp.mean(x, axis=0)
        self.mean.set_value(0.9 * self.mean[...] + 0.1 * jax.lax.stop_gradient(mean))
        self.calls.set_value(self.calls[...] + 1)
        return self.gain[...] * x


@pytest.mark.parametrize("remat", ["dots", "everything"])
def test_state_of_every_layer_goes_through_the_scan(remat):
    keywords = dict(norm=Counting, placement=Placement(), ffn=MLP)
    layout, params = layout_and_params(remat=remat, **keywords)
    _, rest = layout.split(make_stack(remat=remat, **keywords))
    names = {
        f"layers/{sub}/in_norm/{name}"
        for sub in ("attn", "ffn")
        for name in ("mean", "calls")
    }
    assert rest.keys() == names
    assert not names & layout.specs.keys()
    x, weights = inputs()

    @jax.jit
    @functools.partial(jax.value_and_grad, has_aux=True)
    def loss(params, rest):
        model = layout.merge(params, rest)
        y, _ = model(x, SHAPE)
        return jnp.mean(weights * y), layout.split(model)[1]

    (value, once), gradient = loss(params, rest)
    (again, twice), _ = loss(params, once)
    assert value == again  # the state is written, never read
    assert all(jnp.isfinite(g).all() for g in gradient.values())

    # By hand: each layer's input mean, from a loop over single blocks.
    y, states = in_a_loop(params, rest, x, **keywords)
    np.testing.assert_allclose(value, jnp.mean(weights * y), rtol=1e-5)
    for i, state in enumerate(states):
        for path, wanted in state.items():
            np.testing.assert_allclose(
                once[f"layers/{path}"][i], wanted, rtol=1e-4, atol=1e-6
            )
    first = np.asarray(once["layers/attn/in_norm/mean"])
    np.testing.assert_allclose(first[0], 0.1 * np.mean(x, axis=0), rtol=1e-5, atol=1e-7)
    assert np.abs(first[1] - first[0]).max() > 1e-3
    for sub in ("attn", "ffn"):
        calls, mean = (f"layers/{sub}/in_norm/{name}" for name in ("calls", "mean"))
        np.testing.assert_array_equal(once[calls], [1, 1, 1])
        np.testing.assert_array_equal(twice[calls], [2, 2, 2])
        # The same input again: 0.9 m + m for an average that began at zero.
        np.testing.assert_allclose(twice[mean], 1.9 * once[mean], rtol=1e-5, atol=1e-7)
    assert {k: v.dtype for k, v in once.items()} == {
        k: v.dtype for k, v in rest.items()
    }
