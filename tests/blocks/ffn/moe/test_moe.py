"""The mixture: released models, two ways to compute it, no token dropped."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given
from hypothesis import strategies as st

from blocks.ffn.clamped_swiglu import ClampedSwiGLU
from blocks.ffn.mlp import MLP
from blocks.ffn.moe.compute import block_size, blocks, dense
from blocks.ffn.moe.moe import MoE
from blocks.ffn.moe.sigmoid_router import SigmoidRouter
from blocks.ffn.moe.softmax_router import SoftmaxRouter
from blocks.ffn.packing import unpack
from blocks.ffn.swiglu import SwiGLU
from blocks.inits.normal import Normal
from blocks.norms.rmsnorm import RMSNorm
from blocks.parameters import layout_of
from blocks.placement import Placement
from blocks.residual.add import Add
from blocks.residual_mlp import ResidualMLP

GPT_OSS = dict(limit=1.0, alpha=1.702, offset=1.0)
DEEPSEEK_GROUPS = dict(n_groups=4, top_groups=2)
FAMILIES = {  # experts, width, then what is not the default
    "qwen3_moe/0": dict(router=functools.partial(SoftmaxRouter, top_k=2)),
    "qwen3_next/1": dict(
        router=functools.partial(SoftmaxRouter, top_k=2),
        n_shared=1,
        d_shared=20,
        shared_gate=True,
    ),
    "deepseek_v2/1": dict(
        router=functools.partial(
            SoftmaxRouter, top_k=3, renormalize=False, scale=2.0, **DEEPSEEK_GROUPS
        ),
        n_shared=2,
    ),
    "deepseek_v3/1": dict(
        router=functools.partial(SigmoidRouter, top_k=2, scale=2.5, **DEEPSEEK_GROUPS),
        n_shared=1,
    ),
    "kimi_k2/1": dict(
        router=functools.partial(SigmoidRouter, top_k=2, scale=2.827), n_shared=1
    ),
    "gpt_oss/0": dict(
        router=functools.partial(SoftmaxRouter, top_k=2, bias=True),
        expert=functools.partial(ClampedSwiGLU, **GPT_OSS),
    ),
    "llama4/1": dict(
        router=functools.partial(SigmoidRouter, top_k=1, renormalize=False),
        n_shared=1,
        weigh_input=True,
    ),
}


def load(moe, w, family):
    """Puts the arrays of a released layer where they belong."""
    router = moe.router
    kernel = w["gate.weight"] if "gate.weight" in w else w["router.weight"]
    router.kernel.set_value(kernel.T)
    if "router.bias" in w:
        router.bias.set_value(w["router.bias"])
    if "gate.e_score_correction_bias" in w:
        router.balance_bias.set_value(w["gate.e_score_correction_bias"])
    packed, down = w["experts.gate_up_proj"], w["experts.down_proj"]
    if family not in ("gpt_oss/0", "llama4/1"):  # those two store [in, out]
        packed, down = packed.swapaxes(1, 2), down.swapaxes(1, 2)
    packing = "interleaved" if family == "gpt_oss/0" else "concatenated"
    gate, up = unpack(packed, packing)
    for name, value in (("gate", gate), ("up", up), ("down", down)):
        assert getattr(moe.experts, name).kernel.shape == value.shape
        getattr(moe.experts, name).kernel.set_value(value)
    if "experts.gate_up_proj_bias" in w:
        gate, up = unpack(w["experts.gate_up_proj_bias"], packing)
        down = w["experts.down_proj_bias"]
        for name, value in (("gate", gate), ("up", up), ("down", down)):
            getattr(moe.experts, name).bias.set_value(value)
    shared = (
        "shared_expert" if family in ("qwen3_next/1", "llama4/1") else "shared_experts"
    )
    if moe.shared is not None:
        for name in ("gate", "up", "down"):
            kernel = w[f"{shared}.{name}_proj.weight"].T
            assert getattr(moe.shared, name).kernel.shape == kernel.shape
            getattr(moe.shared, name).kernel.set_value(kernel)
    if moe.shared_gate is not None:
        moe.shared_gate.set_value(w["shared_expert_gate.weight"].T)


@pytest.mark.parametrize("family", FAMILIES)
def test_equals_a_layer_of_the_released_model(golden_ffn, assert_within, run, family):
    w = golden_ffn(family)
    n_experts = w["router.logits"].shape[-1]
    d_expert = 16 if family == "qwen3_next/1" else 24
    keywords = {"expert": SwiGLU, **FAMILIES[family]}
    moe = MoE(32, d_expert, n_experts=n_experts, **keywords, rngs=nnx.Rngs(0))
    load(moe, w, family)
    assert_within(run(moe, w["mlp_in"]), w["mlp_out"], 1e-5)


def routed(expert, n_experts, tokens, top_k, seed=0, weights_dtype=jnp.float32):
    """Stacked experts, tokens, weights and choices drawn at random."""
    generator = np.random.default_rng(seed)
    experts = nnx.vmap(lambda key: expert(6, 10, rngs=nnx.Rngs(params=key)))(
        jax.random.split(jax.random.key(seed), n_experts)
    )
    for _, variable in nnx.to_flat_state(nnx.state(experts, nnx.Param)):
        variable.set_value(
            jnp.asarray(0.6 * generator.normal(size=variable.shape), weights_dtype)
        )
    x = jnp.asarray(generator.normal(size=(tokens, 6)), weights_dtype)
    weights = jnp.asarray(generator.uniform(0.1, 1, (tokens, top_k)), weights_dtype)
    order = [generator.permutation(n_experts)[:top_k] for _ in range(tokens)]
    return experts, x, weights, jnp.asarray(np.stack(order))


@pytest.mark.parametrize(
    "expert, tokens, n_experts, top_k, weigh_input",
    [
        (SwiGLU, 1, 4, 2, False),
        (SwiGLU, 33, 5, 3, True),
        (functools.partial(ClampedSwiGLU, inner_norm=RMSNorm), 40, 3, 1, True),
        (functools.partial(MLP, bias=True), 7, 8, 8, False),
    ],
)
def test_blocks_equal_dense_with_gradients(
    assert_within, float64, expert, tokens, n_experts, top_k, weigh_input
):
    experts, x, weights, chosen = routed(
        expert, n_experts, tokens, top_k, weights_dtype=jnp.float64
    )
    graphdef, params, rest = nnx.split(experts, nnx.Param, ...)
    target = jnp.asarray(np.random.default_rng(1).normal(size=x.shape))

    def value_and_grad(compute):
        def loss(params, x, weights):
            experts = nnx.merge(graphdef, params, rest)
            y = compute(experts, x, weights, chosen, weigh_input)
            return jnp.sum(target * y), y

        return jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True))(
            params, x, weights
        )

    ours, theirs = value_and_grad(blocks), value_and_grad(dense)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert_within(a, b, 1e-12)


@pytest.mark.parametrize("compute", [blocks, dense])
@pytest.mark.parametrize("favourite", [0, 3])
def test_no_token_is_dropped_when_all_choose_one_expert(
    assert_within, compute, favourite
):
    experts, x, _, _ = routed(SwiGLU, 4, 200, 1)
    graphdef, state = nnx.split(experts)
    one = nnx.merge(graphdef, jax.tree.map(lambda p: p[favourite], state))
    chosen = jnp.full((200, 1), favourite)
    y = jax.jit(lambda x: compute(experts, x, jnp.full((200, 1), 0.5), chosen, False))(
        x
    )
    assert_within(y, 0.5 * one(x), 1e-6)


@given(
    st.lists(st.integers(0, 400), min_size=1, max_size=70),
    st.sampled_from([8, 16, 32, 64, 128]),
)
def test_there_are_always_enough_blocks(counts, size):
    pairs, n_experts = sum(counts), len(counts)
    n_blocks = (pairs + n_experts * (size - 1)) // size
    assert sum(-(-count // size) for count in counts) <= n_blocks


@given(st.integers(1, 10**6), st.integers(1, 512))
def test_padding_is_at_most_half_of_the_work_of_many_tokens(pairs, n_experts):
    size = block_size(pairs, n_experts)
    assert 8 <= size <= 128
    assert size == 8 or n_experts * (size - 1) <= pairs / 2


def test_unchosen_experts_have_no_gradient():
    experts, x, weights, _ = routed(functools.partial(MLP, bias=True), 5, 6, 2)
    chosen = jnp.array([[0, 3]] * 6)
    graphdef, params, rest = nnx.split(experts, nnx.Param, ...)
    for compute in (blocks, dense):
        gradient = jax.jit(
            jax.grad(
                lambda p, compute=compute: jnp.sum(
                    compute(nnx.merge(graphdef, p, rest), x, weights, chosen, False)
                    ** 2
                )
            )
        )(params)
        for leaf in jax.tree.leaves(gradient):
            assert (leaf[jnp.array([1, 2, 4])] == 0).all()
            assert (leaf[0] != 0).any()


def small(**keywords):
    keywords = {"expert": SwiGLU, "router": SoftmaxRouter, "n_experts": 4, **keywords}
    return MoE(6, 10, **keywords, rngs=nnx.Rngs(0))


def test_terms_are_weighted_and_summed_in_float32():
    # (256 + 1 - 255) / 3 is 0.667; with terms in bfloat16 85.5 + 0.334 - 85 is 0.834.
    expert = functools.partial(MLP, activation="identity")
    router = functools.partial(SoftmaxRouter, top_k=3)
    moe = MoE(1, 1, expert=expert, router=router, n_experts=3, rngs=nnx.Rngs(0))
    moe.router.kernel.set_value(jnp.zeros((1, 3)))
    moe.experts.up.kernel.set_value(jnp.ones((3, 1, 1)))
    moe.experts.down.kernel.set_value(jnp.array([256.0, 1, -255]).reshape(3, 1, 1))
    graphdef, state = nnx.split(moe)
    # XLA may leave out roundings that the program asks for: not here.
    as_written = {"xla_allow_excess_precision": False}
    call = jax.jit(lambda s, x: nnx.merge(graphdef, s)(x), compiler_options=as_written)
    y = call(state, jnp.ones((1, 1), jnp.bfloat16))
    assert y.dtype == jnp.bfloat16
    np.testing.assert_allclose(y.astype(jnp.float32), [[2 / 3]], rtol=2**-8)


def test_an_expert_starts_the_same_however_many_there_are():
    few, many = small(), small(n_experts=8)
    np.testing.assert_array_equal(
        few.experts.up.kernel[...], many.experts.up.kernel[:4]
    )
    kernels = many.experts.gate.kernel[...]
    assert len({float(k[0, 0]) for k in kernels}) == 8


def test_widths():
    moe = small(d_expert=7, n_shared=2)
    assert moe.experts.up.kernel.shape == (4, 6, 7)
    assert moe.shared.up.kernel.shape == (6, 14)
    assert small(n_shared=2, d_shared=5).shared.up.kernel.shape == (6, 5)
    own_rule = MoE(6, None, expert=SwiGLU, router=SoftmaxRouter, rngs=nnx.Rngs(0))
    assert own_rule.experts.up.kernel.shape == (8, 6, 16)


def test_experts_with_state_need_dense(run):
    dropping = functools.partial(SwiGLU, dropout=0.5)
    with pytest.raises(
        ValueError, match="compute='blocks' takes experts without state"
    ):
        small(expert=dropping)
    moe = small(expert=dropping, compute="dense")
    first = run(moe, jnp.ones((3, 6)))
    np.testing.assert_array_equal(moe.experts.dropout.counter[...], [1, 1, 1, 1])
    assert (run(moe, jnp.ones((3, 6))) != first).any()


@pytest.mark.parametrize(
    "keywords, message",
    [
        (dict(n_experts=0), "n_experts must be at least 1, got 0"),
        (dict(d_expert=0), "d_expert must be at least 1, got 0"),
        (dict(n_shared=-1), "n_shared must be at least 0, got -1"),
        (dict(shared_gate=True), "n_shared=0 means no shared expert"),
        (dict(d_shared=4), "n_shared=0 means no shared expert"),
        (dict(compute="ragged"), "compute must be one of blocks, dense, got 'ragged'"),
        (dict(dropout=1.0), "dropout must be .*got 1.0"),
    ],
)
def test_bad_values_are_refused(keywords, message):
    with pytest.raises(ValueError, match=message):
        MoE.check(**keywords)
    with pytest.raises(ValueError, match=message):
        small(**keywords)


def make_model():
    ffn = functools.partial(
        MoE, expert=SwiGLU, router=SigmoidRouter, n_experts=4, n_shared=1, dropout=0.5
    )
    return ResidualMLP(
        6,
        n_layers=3,
        d_ff=10,
        norm=RMSNorm,
        ffn=ffn,
        residual=Add(),
        placement=Placement(),
        init=Normal(),
        rngs=nnx.Rngs(0),
    )


def test_in_a_model_experts_are_stacked_below_layers():
    specs = layout_of(make_model).specs
    experts = {k: s for k, s in specs.items() if "/experts/" in k}
    assert {(s.role, s.n_stacked, s.shape[:2]) for s in experts.values()} == {
        ("matrix", 2, (3, 4))
    }
    shapes = {s.shape[s.n_stacked :] for s in experts.values()}
    assert shapes == {(6, 10), (10, 6)}
    routers = [s for s in specs.values() if s.role == "router"]
    assert [(s.n_stacked, s.shape) for s in routers] == [(1, (3, 6, 4))]


def test_in_a_model_state_moves_with_every_training_step(merged):
    model = make_model()
    graphdef, params, rest = nnx.split(model, nnx.Param, ...)
    batch = {
        "x": jax.random.normal(jax.random.key(0), (8, 6)),
        "weights": jax.random.normal(jax.random.key(1), (8, 6)),
    }

    @jax.jit
    def step(params, rest):
        def loss(params):
            model = merged(graphdef, params, rest)
            value, _ = model.loss(batch)
            return value, nnx.state(model, nnx.Not(nnx.Param))

        (value, rest), gradient = jax.value_and_grad(loss, has_aux=True)(params)
        return value, rest, gradient

    value, after, gradient = step(params, rest)
    second, twice, _ = step(params, after)
    assert value != second  # other masks
    state = {
        "/".join(map(str, path[-2:])): v[...] for path, v in nnx.to_flat_state(twice)
    }
    np.testing.assert_allclose(state["router/load"].sum(-1), [1, 1, 1], rtol=1e-6)
    np.testing.assert_array_equal(state["dropout/counter"], [2, 2, 2])
    bias = np.abs(state["router/balance_bias"])
    assert bias.max() == pytest.approx(0.002)
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))
    again, same, _ = step(params, rest)
    assert again == value
    jax.tree.map(np.testing.assert_array_equal, same, after)
