"""Routers against oracles and released models, the load, and what balances it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

from blocks.auxiliary_loss import with_loss
from blocks.ffn.moe.router import best_groups, load_of
from blocks.ffn.moe.sigmoid_router import SigmoidRouter
from blocks.ffn.moe.softmax_router import SoftmaxRouter
from blocks.modes import set_training
from blocks.oracle import moe as oracle

SOFTMAX = {
    "qwen3_moe/0": dict(top_k=2),
    "qwen3_next/1": dict(top_k=2),
    "deepseek_v2/1": dict(
        top_k=3, renormalize=False, scale=2.0, n_groups=4, top_groups=2
    ),
    "gpt_oss/0": dict(top_k=2, bias=True),
}
SIGMOID = {
    "deepseek_v3/1": dict(top_k=2, scale=2.5, n_groups=4, top_groups=2),
    "kimi_k2/1": dict(top_k=2, scale=2.827),
    "deepseek_v4/1": dict(top_k=2, scale=1.5, score="sqrtsoftplus"),
    "llama4/1": dict(top_k=1, renormalize=False),
}


def released(golden_ffn, family):
    """The router of a released model, and its arrays."""
    w = golden_ffn(family)
    made, keywords = (
        (SoftmaxRouter, SOFTMAX[family])
        if family in SOFTMAX
        else (SigmoidRouter, SIGMOID[family])
    )
    n_experts = w["router.logits"].shape[-1]
    router = made(32, n_experts, **keywords, rngs=nnx.Rngs(0))
    kernel = w["gate.weight"] if "gate.weight" in w else w["router.weight"]
    router.kernel.set_value(kernel.T)
    if "router.bias" in w:
        router.bias.set_value(w["router.bias"])
    if "gate.e_score_correction_bias" in w:
        router.balance_bias.set_value(w["gate.e_score_correction_bias"])
    return router, w


def table(weights, chosen, n_experts):
    """[tokens, n_experts]: the order of the choices plays no part."""
    weights, chosen = np.asarray(weights), np.asarray(chosen)
    out = np.zeros((len(weights), n_experts))
    np.put_along_axis(out, chosen, weights, axis=1)
    return out


@pytest.mark.parametrize("family", [*SOFTMAX, *SIGMOID])
def test_equals_the_router_of_the_released_model(golden_ffn, assert_within, family):
    router, w = released(golden_ffn, family)
    n_experts = router.n_experts
    if "mlp_in" in w:
        assert_within(router.logits(w["mlp_in"]), w["router.logits"], 1e-5)
        weights, chosen = router(w["mlp_in"])
    else:
        # DeepSeek-V4 mixes streams before it: begin at the logits, with kernel 1.
        alone = type(router)(n_experts, n_experts, **SIGMOID[family], rngs=nnx.Rngs(0))
        alone.kernel.set_value(jnp.eye(n_experts))
        alone.balance_bias.set_value(router.balance_bias[...])
        weights, chosen = alone(w["router.logits"])
    if family == "llama4/1":  # dense scores there, zero for the others
        expected = np.asarray(w["router.scores"])
    else:
        expected = table(w["router.weights"], w["router.indices"], n_experts)
    np.testing.assert_array_equal(table(weights, chosen, n_experts) != 0, expected != 0)
    assert_within(table(weights, chosen, n_experts), expected, 1e-5)


@settings(max_examples=10, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    groups=st.sampled_from([(1, 1), (2, 1), (4, 2), (4, 3), (8, 3)]),
    top_k=st.integers(1, 3),
    renormalize=st.booleans(),
    kind=st.sampled_from(["softmax", "sigmoid", "sqrtsoftplus"]),
)
def test_equals_the_oracle(seed, groups, top_k, renormalize, kind):
    n_groups, top_groups = groups
    generator = np.random.default_rng(seed)
    keywords = dict(
        top_k=top_k,
        renormalize=renormalize,
        scale=1.7,
        n_groups=n_groups,
        top_groups=top_groups,
    )
    x = generator.normal(size=(5, 4))
    params = {"kernel": generator.normal(size=(4, 8))}
    if kind == "softmax":
        router = SoftmaxRouter(4, 8, bias=True, **keywords, rngs=nnx.Rngs(0))
        params["bias"] = generator.normal(size=8)
        expected = oracle.softmax_router(x, **params, **keywords)
    else:
        router = SigmoidRouter(4, 8, score=kind, **keywords, rngs=nnx.Rngs(0))
        params["balance_bias"] = 0.5 * generator.normal(size=8)
        expected = oracle.sigmoid_router(x, **params, **keywords, score=kind)
    for name, value in params.items():
        getattr(router, name).set_value(jnp.asarray(value, jnp.float32))
    weights, chosen = router(jnp.asarray(x, jnp.float32))
    np.testing.assert_array_equal(chosen, [[e for e, _ in row] for row in expected])
    np.testing.assert_allclose(
        weights, [[w for _, w in row] for row in expected], rtol=1e-5
    )
    np.testing.assert_allclose(router.load[...], oracle.load(expected, 8), rtol=1e-6)


def test_groups_are_worth_their_best_or_their_best_two():
    # Group 0 has the best expert, group 1 the best pair.
    scores = jnp.array([[0.9, 0.1, 0.6, 0.5]])
    inf = -np.inf
    best = best_groups(scores, 2, 1, summed=1)
    np.testing.assert_array_equal(best, np.float32([[0.9, 0.1, inf, inf]]))
    pair = best_groups(scores, 2, 1, summed=2)
    np.testing.assert_array_equal(pair, np.float32([[inf, inf, 0.6, 0.5]]))


def test_weights_sum_to_the_scale():
    x = jax.random.normal(jax.random.key(0), (7, 4))
    for router in (
        SoftmaxRouter(4, 6, top_k=3, scale=2.5, rngs=nnx.Rngs(0)),
        SigmoidRouter(4, 6, top_k=3, scale=2.5, rngs=nnx.Rngs(0)),
    ):
        weights, _ = router(x)
        np.testing.assert_allclose(weights.sum(-1), 2.5, rtol=1e-6)


def test_the_only_choice_renormalized_does_not_train_the_router(merged):
    # As in jingyaogong/minimind with one expert per token.
    router = SoftmaxRouter(4, 6, top_k=1, rngs=nnx.Rngs(0))
    graphdef, params, rest = nnx.split(router, nnx.Param, ...)
    x = jax.random.normal(jax.random.key(0), (7, 4))
    gradient = jax.grad(lambda p: merged(graphdef, p, rest)(x)[0].sum())(params)
    np.testing.assert_array_equal(gradient["kernel"][...], np.zeros((4, 6)))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_arithmetic_is_float32_whatever_the_tokens(dtype):
    # 1 and 1.001 round to one bfloat16; the choice must not depend on it.
    router = SoftmaxRouter(2, 2, top_k=1, renormalize=False, rngs=nnx.Rngs(0))
    router.kernel.set_value(jnp.array([[1.0, 1.001], [0.0, 0.0]]))
    weights, chosen = router(jnp.ones((3, 2), dtype))
    assert weights.dtype == jnp.float32
    np.testing.assert_array_equal(chosen, [[1]] * 3)
    np.testing.assert_allclose(weights, 1 / (1 + np.exp(-0.001)), rtol=1e-6)


def test_balancing_bias_moves_against_the_load_and_only_chooses():
    # Four tokens: expert 0 is chosen thrice, 1 once, 2 never; shares 3/4, 1/4, 0.
    router = SigmoidRouter(
        3, 3, top_k=1, renormalize=False, bias_speed=0.25, rngs=nnx.Rngs(0)
    )
    router.kernel.set_value(jnp.eye(3))
    x = jnp.array([[2.0, 0, 0], [2, 0, 0], [2, 0, 0], [0, 2, 0]])
    weights, chosen = router(x)
    np.testing.assert_array_equal(chosen, [[0], [0], [0], [1]])
    np.testing.assert_allclose(weights, np.full((4, 1), 0.8807971), rtol=1e-6)
    np.testing.assert_array_equal(router.load[...], [0.75, 0.25, 0])
    # 1/3 is balanced: 0 is above, 1 and 2 are below.
    np.testing.assert_array_equal(router.balance_bias[...], [-0.25, 0.25, 0.25])
    # sigmoid(2) - 0.25 = 0.63 < sigmoid(0) + 0.25: the first three go elsewhere now,
    # with the weight sigmoid(0), free of the bias.
    weights, chosen = router(x)
    np.testing.assert_array_equal(chosen, [[1], [1], [1], [1]])
    np.testing.assert_allclose(weights[:, 0], [0.5, 0.5, 0.5, 0.8807971], rtol=1e-6)
    np.testing.assert_array_equal(router.balance_bias[...], [0, 0, 0.5])


def test_a_balanced_load_moves_nothing():
    router = SigmoidRouter(3, 3, top_k=1, bias_speed=0.25, rngs=nnx.Rngs(0))
    router.kernel.set_value(jnp.eye(3))
    router(jnp.eye(3))
    np.testing.assert_array_equal(router.balance_bias[...], np.zeros(3))


def test_outside_training_nothing_moves():
    router = SigmoidRouter(3, 3, top_k=1, bias_speed=0.25, rngs=nnx.Rngs(0))
    set_training(router, False)
    before = jax.tree.map(jnp.copy, nnx.state(router))
    router(jnp.array([[2.0, 0, 0], [1, 0, 0]]))
    jax.tree.map(np.testing.assert_array_equal, before, nnx.state(router))


@pytest.mark.parametrize("made", [SoftmaxRouter, SigmoidRouter])
def test_balancing_loss_is_in_the_gradient_and_not_in_the_value(made, float64):
    """Central differences of value + coefficient * (Switch's loss, in NumPy)."""
    generator = np.random.default_rng(0)
    kernel = generator.normal(size=(4, 6))
    x = generator.normal(size=(9, 4))
    task = generator.normal(size=(9, 2))
    coefficient = 0.5  # exact in float32

    def loss(kernel, coefficient):
        keywords = dict(top_k=2, renormalize=False, aux_coefficient=coefficient)
        router = made(4, 6, **keywords, rngs=nnx.Rngs(0))
        router.kernel.set_value(kernel)
        return jnp.sum(router(jnp.asarray(x))[0] * task)

    def total(kernel):
        logits = x @ kernel
        if made is SoftmaxRouter:
            p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
            choices = oracle.softmax_router(x, kernel=kernel, renormalize=False)
            s = p
        else:
            s = 1 / (1 + np.exp(-logits))
            p = s / s.sum(-1, keepdims=True)
            choices = oracle.sigmoid_router(x, kernel=kernel, renormalize=False)
        value = sum(
            task[t, i] * s[t, e]
            for t, choice in enumerate(choices)
            for i, (e, _) in enumerate(choice)
        )
        return value, value + coefficient * oracle.balancing_loss(choices, p)

    value, gradient = jax.value_and_grad(loss)(jnp.asarray(kernel), coefficient)
    np.testing.assert_allclose(value, total(kernel)[0], rtol=1e-12)
    plain = jax.grad(loss)(jnp.asarray(kernel), 0.0)
    assert np.abs(gradient - plain).max() > 1e-2
    eps = 1e-6
    for i, j in [(0, 0), (1, 3), (2, 5), (3, 1)]:
        step = np.zeros_like(kernel)
        step[i, j] = eps
        up, down = total(kernel + step)[1], total(kernel - step)[1]
        np.testing.assert_allclose(gradient[i, j], (up - down) / (2 * eps), rtol=1e-6)


def test_balancing_loss_is_one_when_balanced_and_n_when_collapsed():
    # arXiv 2101.03961: N * sum f_i P_i is 1 under uniform routing.
    n = 4
    choices = [[(e, 1.0)] for e in range(n)]
    assert oracle.balancing_loss(choices, np.full((n, n), 1 / n)) == pytest.approx(1)
    alone = [[(0, 1.0)]] * n
    assert oracle.balancing_loss(alone, np.eye(n)[[0] * n]) == pytest.approx(n)


def test_with_loss_adds_a_gradient_of_one():
    def f(y, z):
        return 3 * jnp.sum(with_loss(y, z**2))

    value, (dy, dz) = jax.value_and_grad(f, argnums=(0, 1))(jnp.ones(2), 5.0)
    assert value == 6
    np.testing.assert_array_equal(dy, [3, 3])
    assert dz == 10


def test_load_counts_choices():
    chosen = jnp.array([[0, 2], [2, 3], [2, 0]])
    np.testing.assert_allclose(
        load_of(chosen, 5, jnp.float32), np.array([2, 0, 3, 1, 0]) / 6
    )


def test_members_may_differ_in_speed_and_coefficient():
    x = jnp.array([[2.0, 0, 0], [1, 0, 0]])

    def bias_after(speed, coefficient):
        keywords = dict(top_k=1, bias_speed=speed, aux_coefficient=coefficient)
        router = SigmoidRouter(3, 3, **keywords, rngs=nnx.Rngs(0))
        router.kernel.set_value(jnp.eye(3))
        router(x)
        return router.balance_bias[...]

    moved = jax.vmap(bias_after)(jnp.array([0.25, 1.0]), jnp.array([0.0, 0.1]))
    np.testing.assert_array_equal(moved, [[-0.25, 0.25, 0.25], [-1, 1, 1]])


@pytest.mark.parametrize("made", [SoftmaxRouter, SigmoidRouter])
@pytest.mark.parametrize(
    "keywords, message",
    [
        (dict(top_k=0), "top_k must be at least 1, got 0"),
        (dict(n_groups=0), "n_groups must be at least 1, got 0"),
        (dict(n_groups=2, top_groups=3), "top_groups must be between .*=2, got 3"),
        (dict(scale=0.0), "scale must be positive and finite, got 0.0"),
        (dict(aux_coefficient=-0.1), "aux_coefficient must be .*got -0.1"),
    ],
)
def test_bad_numbers_are_refused_before_anything_is_built(made, keywords, message):
    with pytest.raises(ValueError, match=message):
        made.check(**keywords)


def test_bad_speeds_and_scores_are_refused():
    with pytest.raises(ValueError, match="bias_speed must be .*got -1.0"):
        SigmoidRouter.check(bias_speed=-1.0)
    with pytest.raises(ValueError, match="score must be one of .*got 'tanh'"):
        SigmoidRouter.check(score="tanh")


@pytest.mark.parametrize("made", [SoftmaxRouter, SigmoidRouter])
@pytest.mark.parametrize(
    "keywords, message",
    [
        (dict(top_k=7), "top_k=7 is more than the 6 experts"),
        (dict(n_groups=4, top_groups=4), "n_experts=6 is not divisible by n_groups=4"),
        (
            dict(top_k=3, n_groups=3, top_groups=1),
            "top_k=3 is more than the 2 experts of top_groups=1",
        ),
    ],
)
def test_groups_that_cannot_fill_a_choice_are_refused(made, keywords, message):
    with pytest.raises(ValueError, match=message):
        made(4, 6, **keywords, rngs=nnx.Rngs(0))
