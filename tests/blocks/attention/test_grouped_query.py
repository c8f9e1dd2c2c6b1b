"""Attention: against released models, against the oracle, and what it must not see."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.test_util import check_grads

from blocks.attention.gate import SigmoidGate
from blocks.attention.grouped_query import GroupedQueryAttention
from blocks.inits.xavier import XavierGaussian
from blocks.linear import Linear
from blocks.norms.l2norm import L2Norm
from blocks.norms.rmsnorm import RMSNorm
from blocks.oracle import attention as oracle
from blocks.oracle import norms
from blocks.positions.rope import Rope

xavier = functools.partial(Linear, init=XavierGaussian())


def make(d_model=12, n_heads=4, *, linear=xavier, **keywords):
    return GroupedQueryAttention(
        d_model, n_heads, linear=linear, rngs=nnx.Rngs(0), **keywords
    )


def oracle_norm(norm):
    if norm is None:
        return None
    gain = np.asarray(norm.gain[...])
    return lambda x: norms.rmsnorm(x, gain=gain, eps=1e-6)


UNIT = functools.partial(L2Norm, eps_mode="clamp")
VARIANTS = {
    "plain": {},
    "bias": {"bias": True},
    "no output bias": {"bias": True, "output_bias": False},
    "output bias alone": {"output_bias": True, "causal": False},
    "multi-query, wide heads": {"n_kv_heads": 1, "d_head": 10},
    "rope": {"positions": Rope, "d_head": 4, "n_kv_heads": 2},
    "qk_norm before rope": {"positions": Rope, "qk_norm": RMSNorm, "d_head": 4},
    "qk_norm after rope": {
        "positions": Rope,
        "qk_norm": RMSNorm,
        "qk_norm_at": "after_positions",
        "d_head": 4,
    },
    "qk_norm over all heads": {
        "positions": Rope,
        "qk_norm": RMSNorm,
        "qk_norm_at": "all_heads",
        "n_kv_heads": 2,
        "d_head": 4,
    },
    "inner_norm": {"inner_norm": RMSNorm, "d_head": 5},
    "window and sinks": {"window": 2, "sinks": True, "n_kv_heads": 2},
    "chunk and scale": {"chunk": 2, "scale": 0.9},
    "cap and tau": {"softcap": 1.5, "tau_init": 2.0},
    "gate per feature, then norm": {"gate": SigmoidGate, "inner_norm": RMSNorm},
    "gate per head": {"gate": functools.partial(SigmoidGate, per="head")},
}
SAME = (  # keywords that the oracle spells alike
    "n_kv_heads",
    "causal",
    "window",
    "chunk",
    "softcap",
    "scale",
    "qk_norm_at",
)


@pytest.mark.parametrize("keywords", VARIANTS.values(), ids=VARIANTS)
def test_equals_the_oracle(float64, in_float64, weights, keywords):
    attention = in_float64(make(**keywords))
    x = np.random.default_rng(0).normal(size=(2, 5, 12))
    y = jax.jit(lambda x: attention(x, (2, 5)))(jnp.asarray(x.reshape(10, 12)))
    assert y.dtype == jnp.float64
    for sequence, found in zip(x, y.reshape(2, 5, 12), strict=True):
        expected = oracle.attention(
            sequence,
            q=weights(attention.q),
            k=weights(attention.k),
            v=weights(attention.v),
            o=weights(attention.o),
            n_heads=4,
            **{k: v for k, v in keywords.items() if k in SAME},
            sinks=np.asarray(attention.sinks[...]) if "sinks" in keywords else None,
            tau=np.asarray(attention.tau[...]) if "tau_init" in keywords else None,
            rope_base=10000.0 if "positions" in keywords else None,
            q_norm=oracle_norm(attention.q_norm),
            k_norm=oracle_norm(attention.k_norm),
            gate=weights(attention.gate.proj) if "gate" in keywords else None,
            inner_norm=oracle_norm(attention.inner_norm),
        )
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize(
    "keywords, expected",
    [
        ({}, ()),
        ({"bias": True}, ("q", "k", "v", "o")),
        ({"bias": True, "output_bias": False}, ("q", "k", "v")),
        ({"output_bias": True}, ("o",)),
    ],
)
def test_which_maps_have_a_bias(keywords, expected):
    attention = make(**keywords)
    found = [name for name in "qkvo" if getattr(attention, name).bias is not None]
    assert tuple(found) == expected


@pytest.mark.parametrize(
    "keywords",
    [
        {"bias": True, "causal": False},
        VARIANTS["qk_norm before rope"] | {"window": 2},
        {"sinks": True, "softcap": 1.5, "tau_init": 1.0, "gate": SigmoidGate},
    ],
    ids=["bias, bidirectional", "qk_norm before rope, window", "sinks, cap, tau, gate"],
)
def test_gradient_equals_central_differences(float64, in_float64, keywords):
    attention = make(**{**keywords, "n_kv_heads": 2})
    attention = in_float64(attention, spread=0.3)  # weights off 0 and 1
    graphdef, params = nnx.split(attention, nnx.Param)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(4, 12)))

    @jax.jit
    def function(params, x):
        return nnx.merge(graphdef, params)(x, (1, 4))

    check_grads(function, (params, x), 1, ["rev"], rtol=1e-6, atol=1e-6, eps=1e-5)


@pytest.mark.parametrize("positions", [None, Rope])
def test_a_token_sees_neither_later_tokens_nor_other_sequences(positions):
    attention = make(16, n_kv_heads=2, positions=positions)
    x = jax.random.normal(jax.random.key(0), (2, 6, 16))

    def seen_by(batch, token):
        def output(x):
            y = attention(x.reshape(12, 16), (2, 6)).reshape(2, 6, 16)
            return jnp.sum(y[batch, token] ** 2)

        return jax.jit(jax.grad(output))(x)

    gradient = seen_by(1, 3)
    assert (gradient[0] == 0).all()
    assert (gradient[1, 4:] == 0).all()
    assert (jnp.abs(gradient[1, :4]).max(axis=-1) > 0).all()


def test_without_causality_every_token_of_the_sequence_is_seen():
    attention = make(causal=False)
    x = jax.random.normal(jax.random.key(0), (10, 12))
    loss = lambda x: jnp.sum(attention(x, (2, 5))[5] ** 2)  # noqa: E731
    gradient = jax.jit(jax.grad(loss))(x)
    assert (gradient[:5] == 0).all()
    assert (jnp.abs(gradient[5:]).max(axis=-1) > 0).all()


def test_groups_equal_repeated_heads():
    # Key/value head j serves query heads 2 j and 2 j + 1, not j and j + 2.
    grouped = make(n_kv_heads=2, positions=Rope, d_head=4)
    full = make(positions=Rope, d_head=4)
    for name in ("q", "o"):
        getattr(full, name).kernel.set_value(getattr(grouped, name).kernel[...])
    for name in ("k", "v"):
        kernel = getattr(grouped, name).kernel[...].reshape(12, 2, 4)
        repeated = jnp.repeat(kernel, 2, axis=1).reshape(12, 16)
        getattr(full, name).kernel.set_value(repeated)
    x = jax.random.normal(jax.random.key(1), (10, 12))
    np.testing.assert_allclose(
        jax.jit(lambda x: grouped(x, (2, 5)))(x),
        jax.jit(lambda x: full(x, (2, 5)))(x),
        rtol=1e-5,
        atol=1e-6,
    )


def products(jaxpr, what="shape"):
    """Shape or dtype of the operands of all matrix products, inner programs too."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            yield tuple(getattr(v.aval, what) for v in equation.invars)
        for inner in jax.core.jaxprs_in_params(equation.params):
            yield from products(inner, what)


def test_groups_do_not_repeat_keys_and_values():
    attention = make(n_kv_heads=2)
    traced = jax.make_jaxpr(lambda x: attention(x, (2, 7)))(jnp.ones((14, 12)))
    batched = [pair for pair in products(traced.jaxpr) if len(pair[0]) > 2]
    # Two heads of seven queries are 14 rows against one head of keys and of values.
    assert batched == [((2, 2, 14, 3), (2, 2, 3, 7)), ((2, 2, 14, 7), (2, 2, 7, 3))]


def test_order_counts_only_with_positions_or_a_mask(float64, in_float64):
    x = jnp.asarray(np.random.default_rng(0).normal(size=(6, 12)))
    order = jnp.array([3, 0, 5, 1, 4, 2])

    def commutes(attention):
        apply = jax.jit(lambda x: attention(x, (1, 6)))
        return np.allclose(apply(x[order]), apply(x)[order], rtol=1e-10, atol=1e-10)

    assert commutes(in_float64(make(causal=False, d_head=4)))
    assert not commutes(in_float64(make(causal=True, d_head=4)))
    assert not commutes(in_float64(make(causal=False, d_head=4, positions=Rope)))


def test_equal_keys_give_the_running_mean_of_values(float64, in_float64):
    attention = in_float64(make())
    attention.k.kernel.set_value(jnp.zeros((12, 12)))
    attention.o.kernel.set_value(jnp.eye(12))
    x = jnp.asarray(np.random.default_rng(0).normal(size=(5, 12)))
    values = np.asarray(attention.v(x))
    expected = np.cumsum(values, axis=0) / np.arange(1, 6)[:, None]
    np.testing.assert_allclose(attention(x, (1, 5)), expected, rtol=1e-12, atol=1e-13)


def test_qk_norm_makes_scores_blind_to_the_scale_of_queries():
    attention = make(qk_norm=functools.partial(RMSNorm, eps=1e-12))
    x = jax.random.normal(jax.random.key(0), (5, 12))
    before = attention(x, (1, 5))
    attention.q.kernel.set_value(50 * attention.q.kernel[...])
    np.testing.assert_allclose(attention(x, (1, 5)), before, rtol=1e-4, atol=1e-5)
    attention.q_norm.gain.set_value(3 * attention.q_norm.gain[...])
    assert not np.allclose(attention(x, (1, 5)), before, atol=1e-2)


def test_qk_norm_is_shared_by_heads_and_inner_norm_is_not():
    attention = make(n_kv_heads=2, d_head=5, qk_norm=RMSNorm, inner_norm=RMSNorm)
    assert attention.q_norm.gain.shape == attention.k_norm.gain.shape == (5,)
    assert attention.q_norm is not attention.k_norm
    assert attention.inner_norm.gain.shape == (20,)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_keeps_shape_and_dtype_and_stays_near_float32(dtype):
    attention = make(
        n_kv_heads=2, d_head=4, positions=Rope, qk_norm=RMSNorm, inner_norm=RMSNorm
    )
    x = jax.random.normal(jax.random.key(0), (10, 12))

    @jax.jit
    def apply(x):
        return attention(x, (2, 5))

    @jax.jit
    @jax.grad
    def loss_gradient(x):
        return jnp.sum(attention(x, (2, 5)).astype(jnp.float32) ** 3)

    y = apply(x.astype(dtype))
    assert (y.shape, y.dtype) == ((10, 12), dtype)
    scale = {jnp.float32: 0, jnp.bfloat16: 2**-8, jnp.float16: 2**-11}[dtype]
    expected = apply(x)
    np.testing.assert_allclose(
        y.astype(jnp.float32), expected, atol=8 * scale * jnp.abs(expected).max()
    )
    gradient, wanted = loss_gradient(x.astype(dtype)), loss_gradient(x)
    assert gradient.dtype == dtype
    error = jnp.linalg.norm(gradient.astype(jnp.float32) - wanted)
    assert error <= 16 * scale * jnp.linalg.norm(wanted)


def test_scores_do_not_overflow_in_float16():
    # q . k is 4 * 200 * 200 = 160000, above the largest float16.
    attention = make(4, 1)
    for name in ("q", "k", "v", "o"):
        getattr(attention, name).kernel.set_value(jnp.eye(4))
    x = jnp.full((3, 4), 200, jnp.float16)
    np.testing.assert_array_equal(attention(x, (1, 3)), x)


# q = (3, 4), k = (4, 3): by hand, with eight digits.
@pytest.mark.parametrize("factor", [1.0, 1e3, 1e-4])
def test_unit_vectors_and_tau_give_tau_times_the_cosine(float64, factor):
    attention = make(2, 1, qk_norm=UNIT, tau_init=8.0, causal=False)
    graphdef, params = nnx.split(attention, nnx.Param)
    q, k = jnp.array([[[[3.0, 4.0]]]]) * factor, jnp.array([[[[4.0, 3.0]]]])

    def score(tau, q, k):
        attention = nnx.merge(graphdef, params)
        q, k = attention._normalized(q, k)
        return jnp.vdot(tau * q, k)

    value, (d_tau, dq, dk) = jax.value_and_grad(score, (0, 1, 2))(8.0, q, k)
    np.testing.assert_allclose(value, 7.68, rtol=1e-12)
    np.testing.assert_allclose(d_tau, 0.96, rtol=1e-12)
    np.testing.assert_allclose(dq[0, 0, 0] * factor, [0.3584, -0.2688], rtol=1e-10)
    np.testing.assert_allclose(dk[0, 0, 0], [-0.2688, 0.3584], rtol=1e-10)


def test_tau_does_not_widen_the_products():
    attention = make(qk_norm=UNIT, tau_init=3.0)
    half = jax.ShapeDtypeStruct((14, 12), jnp.bfloat16)
    traced = jax.make_jaxpr(lambda x: attention(x, (2, 7)))(half)
    found = {dtype for pair in products(traced.jaxpr, "dtype") for dtype in pair}
    assert found == {jnp.dtype("bfloat16")}


def test_tau_replaces_the_scale_and_sinks_are_drawn():
    attention = make(tau_init=3.5, sinks=True)
    assert attention.scale == 1.0
    np.testing.assert_array_equal(attention.tau[...], [3.5])
    assert attention.sinks.shape == (4,)
    sinks = make(4096, 4096, d_head=1, sinks=True, linear=no_map).sinks[...]
    np.testing.assert_allclose(jnp.std(sinks), 0.02, rtol=0.05)


def no_map(d_in, d_out, **keywords):
    return lambda x: x


def test_sinks_leave_the_other_draws_alone():
    plain, with_sinks = make(), make(sinks=True)
    for name in "qkvo":
        np.testing.assert_array_equal(
            getattr(plain, name).kernel[...], getattr(with_sinks, name).kernel[...]
        )


def test_heads_and_output_are_the_two_halves():
    attention = make(n_kv_heads=2, gate=SigmoidGate)
    x = jax.random.normal(jax.random.key(0), (10, 12))
    q, k, v = attention.heads(x, (2, 5))
    assert (q.shape, k.shape, v.shape) == ((2, 4, 5, 3), (2, 2, 5, 3), (2, 2, 5, 3))
    np.testing.assert_array_equal(attention.output(x, q, k, v), attention(x, (2, 5)))


def test_all_heads_are_normalized_as_one_vector():
    # Two heads (3, 4), (1, 0): raising one of them shrinks the other.
    norm = functools.partial(RMSNorm, eps=1e-12)
    attention = make(4, 2, qk_norm=norm, qk_norm_at="all_heads")
    assert attention.q_norm.gain.shape == attention.k_norm.gain.shape == (4,)
    attention.q.kernel.set_value(jnp.eye(4))
    q, _, _ = attention.heads(jnp.array([[3.0, 4.0, 1.0, 0.0]]), (1, 1))
    expected = [1.176697, 1.568929, 0.392232, 0]
    np.testing.assert_allclose(q.reshape(-1), expected, rtol=1e-6)


def test_a_single_token_attends_to_itself():
    attention = make(causal=True)
    x = jax.random.normal(jax.random.key(0), (3, 12))
    expected = attention.o(attention.v(x))
    np.testing.assert_allclose(attention(x, (3, 1)), expected, rtol=1e-6, atol=1e-7)


def test_linear_factory_hears_the_uses():
    calls = []

    def linear(d_in, d_out, *, use, bias, rngs):
        calls.append((d_in, d_out, use, bias))
        return lambda x: x

    make(12, 4, n_kv_heads=2, d_head=5, linear=linear)
    assert calls == [
        (12, 20, "query", False),
        (12, 10, "key", False),
        (12, 10, "value", False),
        (20, 12, "output", False),
    ]


@pytest.mark.parametrize(
    "sizes, message",
    [
        ({"n_heads": 6, "n_kv_heads": 4}, "n_heads=6 and n_kv_heads=4"),
        ({"n_heads": 2, "n_kv_heads": 4}, "n_heads=2 and n_kv_heads=4"),
        ({"n_heads": 5}, "d_model=12 and n_heads=5"),
        ({"n_heads": 0}, "n_heads must be at least 1, got 0"),
        ({"n_heads": 4, "n_kv_heads": 0}, "n_kv_heads must be at least 1, got 0"),
        ({"n_heads": 4, "d_head": -1}, "d_head must be at least 1, got -1"),
        ({"n_heads": 4, "window": 0}, "window must be at least 1, got 0"),
        ({"n_heads": 4, "window": 2, "causal": False}, "window .*needs causal"),
        ({"n_heads": 4, "scale": 0.0}, "scale must be positive and finite, got 0.0"),
        ({"n_heads": 4, "scale": 1.0, "tau_init": 2.0}, "tau_init replaces scale"),
        ({"n_heads": 4, "qk_norm_at": "tail"}, "qk_norm_at must be one of .*'tail'"),
        ({"n_heads": 4, "implementation": "xla"}, "implementation must be .*'xla'"),
        (
            {"n_heads": 4, "implementation": "cudnn", "softcap": 2.0},
            "implementation cudnn: the kernel has no softcap",
        ),
    ],
)
def test_senseless_keywords_are_refused(sizes, message):
    with pytest.raises(ValueError, match=message):
        GroupedQueryAttention.check(d_model=12, **sizes)
    with pytest.raises(ValueError, match=message):
        make(12, **sizes)


def test_check_accepts_what_a_config_knows():
    GroupedQueryAttention.check(causal=True, n_kv_heads=None, d_head=None)
    GroupedQueryAttention.check(d_model=12, n_heads=5, d_head=3)


@pytest.mark.parametrize("tau_init", [0.0, -1.0, float("nan")])
def test_senseless_tau_is_refused_before_it_is_traced(tau_init):
    with pytest.raises(ValueError, match=f"tau_init must be .*got {tau_init}"):
        GroupedQueryAttention.check(tau_init=tau_init)


def test_shape_that_does_not_fit_the_tokens_is_refused():
    with pytest.raises(ValueError, match=r"batch \* seq = 2 \* 4 tokens, got"):
        make()(jnp.ones((10, 12)), (2, 4))
