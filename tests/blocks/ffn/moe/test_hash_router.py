"""Experts by the token: the table, who says the tokens, and what has a gradient."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from blocks.attention.grouped_query import GroupedQueryAttention
from blocks.ffn.moe.hash_router import HashRouter
from blocks.ffn.moe.moe import MoE
from blocks.ffn.swiglu import SwiGLU
from blocks.inits.normal import Normal
from blocks.language_model import LanguageModel
from blocks.norms.rmsnorm import RMSNorm
from blocks.oracle import moe as oracle
from blocks.parameters import layout_of
from blocks.placement import PRE
from blocks.reading import reading, tokens_read
from blocks.residual.add import Add

X = np.random.default_rng(0).normal(size=(6, 4))
TOKENS = np.array([[3, 0, 4], [3, 9, 0]])


def make(**keywords):
    return HashRouter(4, 6, **{"n_rows": 5, **keywords}, rngs=nnx.Rngs(0))


@pytest.mark.parametrize("renormalize", [True, False])
@pytest.mark.parametrize("score", ["sqrtsoftplus", "sigmoid"])
def test_equals_the_oracle(renormalize, score):
    router = make(top_k=3, renormalize=renormalize, score=score, scale=1.5)
    with reading(jnp.asarray(TOKENS)):
        weights, chosen = router(jnp.asarray(X, jnp.float32))
    expected = oracle.hash_router(
        X,
        TOKENS.reshape(-1),
        kernel=np.asarray(router.kernel[...], np.float64),
        table=np.asarray(router.table[...]),
        renormalize=renormalize,
        score=score,
        scale=1.5,
    )
    np.testing.assert_array_equal(chosen, [[e for e, _ in c] for c in expected])
    wanted = [[weight for _, weight in c] for c in expected]
    np.testing.assert_allclose(weights, wanted, rtol=1e-5)


def test_a_token_whose_experts_all_score_next_to_nothing_has_a_gradient():
    """Weights 3 : 1 whatever the scores, down to where they vanish beside 1e-20."""
    router = make(n_rows=1, top_k=2)
    first, second = np.asarray(router.table[...])[0]
    for low in (-20.0, -60.0, -400.0):  # sqrt(softplus(z)) is e^(z / 2) there
        logits = np.full((1, 6), low, np.float32)
        logits[0, first] += 2 * np.log(3)

        def weights(logits):
            with reading(jnp.zeros((1, 1), int)):
                return router(logits)[0][0]

        router.logits = lambda x: x
        found = weights(jnp.asarray(logits))
        expected = [0.75, 0.25] if low > -100 else [0.0, 0.0]
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-20)
        router.is_training = False
        gradient = jax.grad(lambda z: weights(z)[0])(jnp.asarray(logits))
        assert jnp.isfinite(gradient).all()
        if low > -100:  # d w / d z of e^(z / 2): w (1 - w) / 2
            np.testing.assert_allclose(gradient[0, first], 0.09375, rtol=1e-3)
            np.testing.assert_allclose(gradient[0, second], -0.09375, rtol=1e-3)
        router.is_training = True


def test_the_stream_does_not_choose_and_equal_tokens_have_equal_experts():
    router = make()
    chosen = []
    for scale in (1.0, -100.0):
        with reading(jnp.asarray(TOKENS)):
            chosen.append(np.asarray(router(jnp.asarray(scale * X, jnp.float32))[1]))
    np.testing.assert_array_equal(*chosen)
    np.testing.assert_array_equal(chosen[0][0], chosen[0][3])
    # Tokens 4 and 9 are one row of five.
    np.testing.assert_array_equal(chosen[0][2], chosen[0][4])


def test_a_row_has_different_experts_and_rows_differ():
    table = np.asarray(make(n_rows=200, top_k=4).table[...])
    assert table.dtype == np.uint32
    assert all(len(set(row)) == 4 for row in table)
    counts = np.bincount(table.reshape(-1), minlength=6)
    assert counts.min() > 0.7 * counts.mean()


def test_nothing_says_the_tokens_or_others():
    router, x = make(), jnp.asarray(X, jnp.float32)
    with pytest.raises(ValueError, match="does not say which tokens it reads"):
        router(x)
    with (
        reading(jnp.zeros((1, 5), int)),
        pytest.raises(ValueError, match="to read 6 tokens, got 5"),
    ):
        router(x)
    with pytest.raises(ValueError, match="does not say"):  # the context is over
        tokens_read()


@pytest.mark.parametrize(
    "keywords, message",
    [
        (dict(n_rows=0), "n_rows must be at least 1, got 0"),
        (dict(score="tanh"), "score must be one of .*got 'tanh'"),
        (dict(top_k=0), "top_k must be at least 1, got 0"),
        (dict(scale=-1.0), "scale must be positive and finite, got -1.0"),
    ],
)
def test_bad_numbers_are_refused_before_anything_is_built(keywords, message):
    with pytest.raises(ValueError, match=message):
        HashRouter.check(**keywords)


def test_a_language_model_says_what_it_reads():
    """In a scan with recomputation: the gradient of every expert's kernel shows which."""
    experts = functools.partial(SwiGLU)
    ffn = functools.partial(
        MoE,
        expert=experts,
        router=functools.partial(HashRouter, n_rows=7, top_k=1),
        n_experts=4,
    )
    model = functools.partial(
        LanguageModel,
        7,
        8,
        n_layers=2,
        n_heads=2,
        d_ff=8,
        norm=RMSNorm,
        attention=GroupedQueryAttention,
        ffn=ffn,
        residual=Add(),
        placement=PRE,
        init=Normal(),
        remat="nothing",
    )
    make = lambda: model(rngs=nnx.Rngs(0))  # noqa: E731
    layout = layout_of(make)
    params, state = layout.split(jax.jit(make)())
    table = np.array([0, 1, 2, 3, 0, 1, 2], np.uint32)[:, None]
    (path,) = (p for p in state if p.endswith("router/table"))
    state[path] = jnp.asarray(np.stack([table, (table + 1) % 4]))
    batch = jnp.array([[1, 5, 1, 0]])  # the last is only predicted

    def loss(params):
        return layout.merge(params, state).loss(batch)[0]

    gradients = jax.jit(jax.grad(loss))(params)
    up = gradients["blocks/layers/ffn/branch/experts/up/kernel"]
    is_used = np.asarray(jnp.abs(up).max(axis=(2, 3)) > 0)
    np.testing.assert_array_equal(is_used, [[0, 1, 0, 0], [0, 0, 1, 0]])
