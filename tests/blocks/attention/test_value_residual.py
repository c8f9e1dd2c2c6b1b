"""Value residuals, and attention with a norm of its values."""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from blocks.attention.grouped_query import GroupedQueryAttention
from blocks.attention.head_scale import HeadScale
from blocks.attention.qkv_norm import QKVNormAttention
from blocks.attention.value_residual import ValueResidualAttention
from blocks.ffn.mlp import MLP
from blocks.inits.xavier import XavierGaussian
from blocks.language_model import LanguageModel
from blocks.norms.rmsnorm import RMSNorm
from blocks.oracle.attention import attention as oracle
from blocks.oracle.residual import mixed_values
from blocks.parameters import layout_of
from blocks.pattern import First
from blocks.placement import PRE
from blocks.residual.add import Add

D_MODEL, N_HEADS, N_KV, D_HEAD, SEQ = 6, 4, 2, 3, 5
SIZES = dict(n_kv_heads=N_KV, d_head=D_HEAD)


def kernels_of(attention):
    return {
        m: np.asarray(getattr(attention, m).kernel[...], np.float64) for m in "qkvo"
    }


def with_values(x, values, kernels):
    """The oracle of attention, of values that are given and not projected."""
    wide = np.concatenate([x, values], axis=1)

    def of_x(kernel):
        return np.concatenate([kernel, np.zeros((values.shape[1], kernel.shape[1]))])

    take = np.concatenate(
        [np.zeros((D_MODEL, values.shape[1])), np.eye(values.shape[1])]
    )
    return oracle(
        wide,
        q=(of_x(kernels["q"]), None),
        k=(of_x(kernels["k"]), None),
        v=(take, None),
        o=(kernels["o"], None),
        n_heads=N_HEADS,
        n_kv_heads=N_KV,
    )


@pytest.mark.parametrize("is_learned", [True, False])
def test_three_blocks_equal_the_oracle(float64, is_learned):
    first, own = 0.3, 0.9
    make = functools.partial(
        ValueResidualAttention,
        D_MODEL,
        N_HEADS,
        **SIZES,
        is_learned=is_learned,
        first_init=first,
        own_init=own,
    )
    blocks = [make(rngs=nnx.Rngs(i)) for i in range(3)]
    kernels = [kernels_of(block) for block in blocks]
    inputs = np.random.default_rng(0).normal(size=(3, SEQ, D_MODEL))

    @jax.jit
    def run(inputs):
        memory, out = blocks[0].first_memory(SEQ, inputs.dtype), []
        for layer, (block, x) in enumerate(zip(blocks, inputs, strict=True)):
            y, memory = block.remember(x, (1, SEQ), memory, jnp.int32(layer))
            out.append(y)
        return jnp.stack(out)

    values = [x @ k["v"] for x, k in zip(inputs, kernels, strict=True)]
    if is_learned:  # parameters are float32
        first, own = float(np.float32(first)), float(np.float32(own))
    expected = [
        with_values(x, v, k)
        for x, v, k in zip(
            inputs, mixed_values(values, first, own), kernels, strict=True
        )
    ]
    np.testing.assert_allclose(run(jnp.asarray(inputs)), expected, rtol=0, atol=1e-12)


def model(n_layers=3, **keywords):
    settings = dict(
        n_layers=n_layers,
        n_heads=2,
        d_ff=8,
        norm=RMSNorm,
        attention=ValueResidualAttention,
        ffn=MLP,
        residual=Add(),
        placement=PRE,
        init=XavierGaussian(),
    )
    return functools.partial(LanguageModel, 7, 4, **settings | keywords)


def loss_and_gradient(make):
    layout = layout_of(lambda: make(rngs=nnx.Rngs(0)))
    tokens = np.random.default_rng(0).integers(0, 7, (2, 6))

    @jax.jit
    def run():
        params, _ = layout.split(make(rngs=nnx.Rngs(0)))
        loss = jax.value_and_grad(lambda p: layout.merge(p, {}).loss(tokens)[0])
        return loss(params)

    return layout, *run()


def test_memory_passes_the_scan():
    # Values of block 0 alone: the value maps of later blocks get no gradient.
    own = functools.partial(
        ValueResidualAttention, first_init=1.0, own_init=0.0, is_learned=False
    )
    _, _, gradient = loss_and_gradient(model(attention=own))
    norms = np.linalg.norm(gradient["blocks/layers/attn/branch/v/kernel"], axis=(1, 2))
    assert norms[0] > 0
    np.testing.assert_array_equal(norms[1:], 0)


def test_its_own_values_alone_are_plain_attention():
    own = functools.partial(
        ValueResidualAttention, first_init=0.0, own_init=1.0, is_learned=False
    )
    _, loss, _ = loss_and_gradient(model(attention=own))
    _, expected, _ = loss_and_gradient(model(attention=GroupedQueryAttention))
    np.testing.assert_allclose(loss, expected, rtol=1e-6)


def test_factors_are_parameters_of_every_block_and_move_in_all_but_the_first():
    layout, _, gradient = loss_and_gradient(model())
    for name in ("first", "own"):
        path = f"blocks/layers/attn/branch/{name}"
        spec = layout.specs[path]
        assert (spec.role, spec.shape, spec.n_stacked) == ("scale", (3, 1), 1)
        assert gradient[path][0] == 0
        assert (gradient[path][1:] != 0).all()


def test_a_first_block_that_keeps_no_values_is_refused():
    pattern = First(attention=GroupedQueryAttention)
    with pytest.raises(ValueError, match="values of the first block"):
        loss_and_gradient(model(pattern=pattern))


def test_half_precision_is_rounded_once():
    attention = ValueResidualAttention(D_MODEL, N_HEADS, **SIZES, rngs=nnx.Rngs(0))
    x = jax.random.normal(jax.random.key(0), (SEQ, D_MODEL), jnp.bfloat16)
    memory = attention.first_memory(SEQ, x.dtype)
    y, memory = attention.remember(x, (1, SEQ), memory, 1)
    assert (y.dtype, memory.dtype) == (jnp.bfloat16, jnp.bfloat16)


@pytest.mark.parametrize("name", ["first_init", "own_init"])
def test_factors_that_are_no_numbers_are_refused(name):
    with pytest.raises(ValueError, match=f"{name} must be finite, got nan"):
        ValueResidualAttention.check(**{name: float("nan")})
    with pytest.raises(ValueError, match="softcap"):
        ValueResidualAttention.check(softcap=-1.0)


# -- keywords --------------------------------------------------------------------------


@pytest.mark.parametrize("cls", [ValueResidualAttention, QKVNormAttention])
def test_a_config_may_set_what_the_parent_has_and_more(cls):
    theirs = inspect.signature(GroupedQueryAttention.__init__).parameters
    ours = inspect.signature(cls.__init__).parameters
    assert theirs.keys() <= ours.keys()
    assert not any(p.kind is p.VAR_KEYWORD for p in ours.values())
    for name, parameter in theirs.items():
        assert ours[name].default == parameter.default, name
        assert ours[name].annotation == parameter.annotation, name


# -- norms of values, factors of heads -------------------------------------------------


def test_values_of_every_head_are_normalized():
    norm = functools.partial(RMSNorm, eps=1e-12)
    attention = QKVNormAttention(
        D_MODEL, N_HEADS, **SIZES, qk_norm=norm, rngs=nnx.Rngs(0)
    )
    x = jax.random.normal(jax.random.key(0), (SEQ, D_MODEL))
    for y in attention.heads(x, (1, SEQ)):
        np.testing.assert_allclose(jnp.mean(y**2, -1), 1.0, rtol=1e-5)
    with pytest.raises(ValueError, match="qk_norm"):
        QKVNormAttention(D_MODEL, N_HEADS, rngs=nnx.Rngs(0))


def test_a_factor_of_a_head_multiplies_its_rows_of_the_output_map():
    make = functools.partial(GroupedQueryAttention, D_MODEL, N_HEADS, **SIZES)
    scaled = make(gate=HeadScale, rngs=nnx.Rngs(0))
    plain = make(rngs=nnx.Rngs(0))
    x = jax.random.normal(jax.random.key(0), (SEQ, D_MODEL))
    np.testing.assert_array_equal(scaled(x, (1, SEQ)), plain(x, (1, SEQ)))
    factors = jnp.array([0.5, 2.0, -1.0, 3.0])
    scaled.gate.scale[...] = factors
    rows = jnp.repeat(factors, D_HEAD)[:, None]
    plain.o.kernel[...] = rows * plain.o.kernel[...]
    np.testing.assert_allclose(
        scaled(x, (1, SEQ)), plain(x, (1, SEQ)), rtol=1e-5, atol=1e-6
    )
    y = scaled.gate(x.astype(jnp.float16), jnp.ones((SEQ, 12), jnp.float16))
    assert y.dtype == jnp.float16
