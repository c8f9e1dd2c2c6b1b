"""Latent attention beyond the contract and the released models of test_golden."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from blocks.attention.mla import LatentAttention
from blocks.norms.rmsnorm import RMSNorm
from blocks.oracle import attention as oracle
from blocks.oracle import norms
from blocks.oracle import positions as positions_oracle
from blocks.positions.rope import Rope

SMALL = dict(kv_rank=5, d_rope=4, latent_norm=RMSNorm)


def make(d_model=12, n_heads=3, **keywords):
    return LatentAttention(d_model, n_heads, **{**SMALL, **keywords}, rngs=nnx.Rngs(0))


VARIANTS = {
    "no latent query": {"q_rank": None},
    "everything": {
        "q_rank": 7,
        "d_head": 6,
        "d_value": 5,
        "positions": functools.partial(Rope, layout="interleaved", base=50.0),
        "inner_norm": RMSNorm,
        "window": 3,
        "scale": 0.4,
    },
    "bidirectional": {"q_rank": 2, "causal": False},
}


@pytest.mark.parametrize("keywords", VARIANTS.values(), ids=VARIANTS)
def test_equals_the_oracle(float64, in_float64, weights, keywords):
    attention = in_float64(nnx.eval_shape(lambda: make(**keywords)))
    x = np.random.default_rng(0).normal(size=(6, 12))
    y = jax.jit(lambda x: attention(x, (1, 6)))(jnp.asarray(x))
    names = ["kv_down", "k_rope", "k_up", "v_up", "o"]
    names += ["q"] if keywords["q_rank"] is None else ["q_down", "q_up"]
    settings = {
        name: functools.partial(
            norms.rmsnorm, gain=np.asarray(getattr(attention, name).gain[...]), eps=1e-6
        )
        for name in ("q_norm", "kv_norm", "inner_norm")
        if getattr(attention, name, None) is not None
    }
    if "positions" in keywords:
        settings["positions"] = functools.partial(
            positions_oracle.rope, base=50.0, layout="interleaved"
        )
    expected = oracle.latent_attention(
        x,
        **{name: weights(getattr(attention, name)) for name in names},
        **settings,
        n_heads=3,
        d_rope=4,
        **{k: keywords[k] for k in ("causal", "window", "scale") if k in keywords},
    )
    np.testing.assert_allclose(y, expected, rtol=1e-10, atol=1e-11)


def test_tokens_are_known_by_a_latent_and_one_rope_key():
    # What a cache would keep: kv_rank + d_rope numbers, whatever the heads.
    attention = make(q_rank=None, positions=Rope)
    _, k, v = attention.heads(jax.random.normal(jax.random.key(0), (6, 12)), (1, 6))
    assert (k.shape, v.shape) == ((1, 3, 6, 8), (1, 3, 6, 4))
    rope_key = k[..., 4:]
    np.testing.assert_array_equal(
        rope_key, jnp.broadcast_to(rope_key[:, :1], (1, 3, 6, 4))
    )
    rest = (
        jnp.concatenate([k[..., :4], v], axis=-1).transpose(0, 2, 1, 3).reshape(6, 24)
    )
    assert jnp.linalg.matrix_rank(rest, rtol=1e-5) == 5


def test_linear_factory_hears_the_uses():
    calls = []

    def linear(d_in, d_out, *, use, bias, rngs):
        calls.append((d_in, d_out, use, bias))
        return lambda x: x

    make(12, 3, q_rank=7, d_head=6, d_value=5, linear=linear)
    assert calls == [
        (12, 7, "query", False),
        (7, 30, "query", False),
        (12, 5, "key", False),
        (12, 4, "key", False),
        (5, 18, "key", False),
        (5, 15, "value", False),
        (15, 12, "output", False),
    ]


@pytest.mark.parametrize(
    "keywords, message",
    [
        ({"kv_rank": 0}, "kv_rank must be at least 1, got 0"),
        ({"q_rank": 0}, "q_rank must be at least 1, got 0"),
        ({"d_rope": -2}, "d_rope must be at least 1, got -2"),
        ({"d_value": 0}, "d_value must be at least 1, got 0"),
        ({"n_kv_heads": 1}, "own keys, got n_heads=3 and n_kv_heads=1"),
        ({"scale": float("nan")}, "scale must be positive and finite, got nan"),
        ({"window": 0}, "window must be at least 1, got 0"),
        ({"implementation": "flash"}, "implementation must be one of .*'flash'"),
    ],
)
def test_senseless_keywords_are_refused(keywords, message):
    with pytest.raises(ValueError, match=message):
        LatentAttention.check(d_model=12, n_heads=3, **keywords)
    with pytest.raises(ValueError, match=message):
        make(**keywords)


def test_n_kv_heads_of_the_model_is_accepted_where_it_changes_nothing():
    make(n_kv_heads=3, q_rank=None)
