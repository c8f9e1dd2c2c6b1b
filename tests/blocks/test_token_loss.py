"""The loss of so many tokens at a time equals that of all at once, and takes less."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from blocks.attention.grouped_query import GroupedQueryAttention
from blocks.ffn.mlp import MLP
from blocks.inits.normal import Normal
from blocks.language_model import LanguageModel
from blocks.norms.batchnorm import BatchNorm
from blocks.norms.rmsnorm import RMSNorm
from blocks.parameters import layout_of
from blocks.placement import Placement
from blocks.positions.rope import Rope
from blocks.residual.add import Add
from blocks.token_loss import chunked_losses, token_losses


def operands(tokens=23, d_model=8, vocab=50, dtype="float32"):
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(tokens, d_model)), dtype)
    head = jnp.asarray(rng.normal(size=(d_model, vocab)), "float32")
    return x, head, jnp.asarray(rng.integers(0, vocab, tokens))


def all_at_once(x, head, targets):
    losses, totals = token_losses(x @ head.astype(x.dtype), targets)
    return jnp.mean(losses), jnp.mean(jnp.square(totals))


def in_chunks(x, head, targets, chunk):
    return chunked_losses(lambda x: x @ head.astype(x.dtype), x, targets, chunk)


def grads(fn, x, head, *rest):
    """Values, and gradients of a sum in which both values count."""

    def total(x, head):
        loss, square = fn(x, head, *rest)
        return loss + 0.1 * square, (loss, square)

    return jax.value_and_grad(total, argnums=(0, 1), has_aux=True)(x, head)


def test_losses_of_tokens_are_minus_log_softmax():
    x, head, targets = operands()
    logits = np.float64(x) @ np.float64(head)
    total = np.log(np.exp(logits).sum(axis=-1))
    losses, totals = token_losses(x @ head, targets)
    np.testing.assert_allclose(totals, total, rtol=1e-5)
    expected = total - logits[np.arange(len(x)), targets]
    np.testing.assert_allclose(losses, expected, rtol=1e-5, atol=1e-5)


# One token, chunks of which the last lacks a token, all, more than all.
@pytest.mark.parametrize("chunk", [1, 6, 23, 100])
def test_chunks_change_neither_values_nor_gradients(chunk):
    x, head, targets = operands()
    (_, values), found = grads(in_chunks, x, head, targets, chunk)
    (_, expected), wanted = grads(all_at_once, x, head, targets)
    np.testing.assert_allclose(values, expected, rtol=1e-6)
    for got, want in zip(found, wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_in_bfloat16_sums_and_the_gradient_of_the_head_are_float32():
    x, head, targets = operands(dtype="bfloat16")
    (_, values), (dx, d_head) = grads(in_chunks, x, head, targets, 6)
    (_, expected), _ = grads(all_at_once, x, head, targets)
    assert {v.dtype for v in values} == {jnp.dtype("float32")}
    assert (dx.dtype, d_head.dtype) == (jnp.bfloat16, jnp.float32)
    # Inside a loop the compiler leaves out the rounding of logits, 2^-9 of each.
    np.testing.assert_allclose(values, expected, rtol=1e-3)


def test_memory_does_not_hold_the_logits_of_all_tokens():
    x, head, targets = operands(tokens=512, vocab=8192)

    def temporary(fn, *rest):
        compiled = jax.jit(lambda x, head: grads(fn, x, head, targets, *rest))
        return compiled.lower(x, head).compile().memory_analysis().temp_size_in_bytes

    all_logits = 512 * 8192 * 4
    assert temporary(all_at_once) >= all_logits
    # An eighth of them twice: the logits of a chunk, and their gradient.
    assert temporary(in_chunks, 64) < 0.3 * all_logits


# -- in the model ----------------------------------------------------------------------


def model(loss_chunk, norm=RMSNorm, **keywords):
    def attention(*args, **more):
        return GroupedQueryAttention(*args, positions=Rope, **more)

    return LanguageModel(
        19,
        8,
        n_layers=1,
        n_heads=2,
        d_ff=16,
        norm=norm,
        attention=attention,
        ffn=MLP,
        residual=Add(),
        placement=Placement(in_norm=True, final_norm=True),
        init=Normal(std=0.5),
        loss_chunk=loss_chunk,
        rngs=nnx.Rngs(0),
        **keywords,
    )


SETTINGS = {
    "softcap and z": {"logit_softcap": 2.0, "z_loss": 0.1, "logit_scale": 3.0},
    "tied": {"tied_head": True},
    "biased head": {"head_bias": True},
    "statistics of all tokens": {"norm": BatchNorm},
}


@pytest.mark.parametrize("keywords", SETTINGS.values(), ids=SETTINGS)
def test_a_model_trains_the_same(keywords):
    tokens = jnp.asarray(np.random.default_rng(1).integers(0, 19, (2, 8)))

    def run(loss_chunk):
        layout = layout_of(lambda: model(loss_chunk, **keywords))
        params, rest = layout.split(model(loss_chunk, **keywords))

        def loss(params):
            merged = layout.merge(params, rest)
            return merged.loss(tokens)[0], layout.split(merged)[1]

        (value, after), found = jax.value_and_grad(loss, has_aux=True)(params)
        return value, after, found

    value, after, found = run(5)
    expected, wanted_after, wanted = run(None)
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    for path, want in wanted.items():
        np.testing.assert_allclose(
            found[path], want, rtol=1e-5, atol=1e-6, err_msg=path
        )
    for path, want in wanted_after.items():
        np.testing.assert_array_equal(after[path], want, err_msg=path)


@pytest.mark.parametrize("chunk", [0, -4])
def test_a_chunk_has_a_token_at_least(chunk):
    sizes = dict(d_model=8, n_layers=1, n_heads=2, d_ff=16)
    with pytest.raises(ValueError, match=f"loss_chunk must be at least 1, got {chunk}"):
        LanguageModel.check(**sizes, loss_chunk=chunk)
