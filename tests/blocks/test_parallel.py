"""Attention and feed-forward of one input: their sum, their norms, their memory."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from blocks.attention.grouped_query import GroupedQueryAttention
from blocks.attention.value_residual import ValueResidualAttention
from blocks.ffn.mlp import MLP
from blocks.norms.rmsnorm import RMSNorm
from blocks.parallel import ParallelBranch

D_MODEL, SHAPE = 8, (2, 3)


def branch(attention=GroupedQueryAttention, **keywords):
    branches = {
        "attn": functools.partial(attention, D_MODEL, 2),
        "ffn": functools.partial(MLP, D_MODEL, 12),
    }
    return ParallelBranch(branches, rngs=nnx.Rngs(0), **keywords)


def tokens():
    return jax.random.normal(jax.random.key(1), (6, D_MODEL))


def test_the_branch_is_the_sum_of_its_branches():
    both, u = branch(), tokens()
    expected = both.attn(u, SHAPE) + both.ffn(u, SHAPE)
    np.testing.assert_allclose(both(u, SHAPE), expected, rtol=1e-6)


def test_each_branch_may_have_its_own_norm():
    # GPT-NeoX: y = x + attention(norm_1(x)) + ffn(norm_2(x)).
    both, u = branch(d_model=D_MODEL, norms={"attn": RMSNorm, "ffn": RMSNorm}), tokens()
    both.attn_norm.gain[...] = jnp.full(D_MODEL, 2.0)
    unit = u / jnp.sqrt(jnp.mean(u**2, -1, keepdims=True) + 1e-6)
    expected = both.attn(2 * unit, SHAPE) + both.ffn(unit, SHAPE)
    np.testing.assert_allclose(both(u, SHAPE), expected, rtol=1e-5, atol=1e-6)


def test_an_inner_norm_goes_to_both():
    both = branch(inner_norm=RMSNorm)
    assert both.attn.inner_norm is not None
    assert both.ffn.inner_norm is not None


def test_without_memory_there_is_nothing_to_remember():
    assert not hasattr(branch(), "remember")


@pytest.mark.parametrize("layer", [0, 1])
def test_memory_of_a_branch_is_handed_through(layer):
    norms = {"attn": RMSNorm, "ffn": RMSNorm}
    both = branch(ValueResidualAttention, d_model=D_MODEL, norms=norms)
    u = tokens()
    memory = both.first_memory(6, u.dtype)
    memory = jax.tree.map(lambda m: m + 1.0, memory)
    y, after = both.remember(u, SHAPE, memory, layer)
    unit = both.attn_norm(u)
    alone, wanted = both.attn.remember(unit, SHAPE, memory["attn"], layer)
    np.testing.assert_allclose(y, alone + both.ffn(unit, SHAPE), rtol=1e-5, atol=1e-6)
    assert after.keys() == {"attn"}
    np.testing.assert_array_equal(after["attn"], wanted)
