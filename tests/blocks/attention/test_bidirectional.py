"""Attention that sees everything, and what a model adds to its scores."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from blocks.attention.bidirectional import BidirectionalAttention, adding_to_scores
from blocks.attention.grouped_query import GroupedQueryAttention
from blocks.oracle.attention import softmax

D_MODEL, N_HEADS, N_KV, D_HEAD = 6, 4, 2, 3
SHAPE = BATCH, SEQ = 2, 5
SIZES = dict(n_kv_heads=N_KV, d_head=D_HEAD)


def made(of=BidirectionalAttention, **keywords):
    shapes = lambda: of(D_MODEL, N_HEADS, **SIZES, **keywords, rngs=nnx.Rngs(0))  # noqa: E731
    return nnx.eval_shape(shapes)


def tokens():
    return np.random.default_rng(0).normal(size=(BATCH * SEQ, D_MODEL))


def expected(x, attention, added, scale):
    """One sequence, one head, one query at a time; added [n_heads, seq, seq]."""
    q, k, v = (
        x @ np.asarray(getattr(attention, name).kernel[...]) for name in ("q", "k", "v")
    )
    heads = []
    for head in range(N_HEADS):
        at = slice(D_HEAD * head, D_HEAD * (head + 1))
        shared = head // (N_HEADS // N_KV)
        of = slice(D_HEAD * shared, D_HEAD * (shared + 1))
        heads.append(
            [
                softmax(scale * k[:, of] @ q[i, at] + added[head, i]) @ v[:, of]
                for i in range(SEQ)
            ]
        )
    return np.concatenate(heads, axis=1) @ np.asarray(attention.o.kernel[...])


@pytest.mark.parametrize("scale", [None, 1.0])
def test_equals_the_formula_with_what_is_added(scale, float64, in_float64):
    attention = in_float64(made(scale=scale))
    x = tokens()
    added = np.random.default_rng(1).normal(size=(BATCH, N_HEADS, SEQ, SEQ))
    with adding_to_scores(jnp.asarray(added)):
        y = attention(jnp.asarray(x), SHAPE)
    wanted = [
        expected(one, attention, bias, scale or D_HEAD**-0.5)
        for one, bias in zip(x.reshape(*SHAPE, D_MODEL), added, strict=True)
    ]
    np.testing.assert_allclose(y, np.concatenate(wanted), rtol=1e-10, atol=1e-10)


def test_without_anything_added_it_is_its_parent_without_a_mask(float64, in_float64):
    x = jnp.asarray(tokens())
    own = in_float64(made(bias=True))
    parent = in_float64(made(GroupedQueryAttention, causal=False, bias=True))
    np.testing.assert_allclose(own(x, SHAPE), parent(x, SHAPE), rtol=1e-12)
    assert own.causal is False


def test_what_was_added_is_gone_behind_the_model(in_float64):
    attention = in_float64(made())
    x = jnp.asarray(tokens(), jnp.float32)
    plain = attention(x, SHAPE)
    with adding_to_scores(jnp.eye(SEQ)):
        assert jnp.abs(attention(x, SHAPE) - plain).max() > 1e-3
    np.testing.assert_array_equal(attention(x, SHAPE), plain)

    def interrupted():
        with adding_to_scores(jnp.eye(SEQ)):
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        interrupted()
    np.testing.assert_array_equal(attention(x, SHAPE), plain)


def test_every_token_of_its_own_sequence_is_seen_and_padding_is_not(in_float64):
    attention = in_float64(made())
    lowest = jnp.finfo(jnp.float32).min
    padding = jnp.zeros((1, 1, 1, SEQ)).at[..., 4].set(lowest)

    @jax.grad
    def gradient(x):
        with adding_to_scores(padding):
            y = attention(x, SHAPE).reshape(*SHAPE, D_MODEL)
        return jnp.sum(y[1, 1] ** 2)

    found = gradient(jnp.asarray(tokens(), jnp.float32)).reshape(*SHAPE, D_MODEL)
    assert (found[0] == 0).all()
    assert (found[1, 4] == 0).all()
    assert (jnp.abs(found[1, :4]).max(axis=-1) > 0).all()


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_keeps_the_dtype_and_takes_the_softmax_in_float32(dtype, in_float64):
    attention = in_float64(made())
    x = jnp.asarray(tokens()).astype(dtype)
    program = str(jax.make_jaxpr(lambda x: attention(x, SHAPE))(x))
    assert attention(x, SHAPE).dtype == dtype
    exponentials = [line for line in program.splitlines() if " = exp " in line]
    assert exponentials
    assert all("f32[" in line for line in exponentials)
