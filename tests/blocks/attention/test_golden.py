"""Attention of released models: what transformers computes, forward and backward.

tests/golden/README.md says how the arrays were made. `x` is the input of the attention,
behind the norm of its layer; `dx` is the gradient in it of sum(dy * y).
"""

import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from safetensors.flax import load_file

from blocks.attention.gate import SigmoidGate
from blocks.attention.grouped_query import GroupedQueryAttention
from blocks.attention.mla import LatentAttention
from blocks.norms.rmsnorm import RMSNorm
from blocks.positions.query_temperature import QueryTemperature
from blocks.positions.rope import Rope
from blocks.positions.scaling import Interpolation, Llama3, Yarn

GOLDEN = Path(__file__).parents[2] / "golden" / "attention.safetensors"
SHAPE = (2, 12)
part = functools.partial
norm = part(RMSNorm, eps=1e-3)
wide = dict(n_kv_heads=2, d_head=12)  # heads wider than d_model / n_heads


def rope(base, scaling=None, **others):
    return part(Rope, base=base, scaling=scaling, **others)


small_yarn = part(Yarn, factor=4.0, original_len=16)
FAMILIES = {
    "gpt2/0": dict(bias=True),
    "llama3/0": dict(n_kv_heads=2, positions=rope(5e5)),
    "llama3_1/0": dict(
        n_kv_heads=2, positions=rope(100.0, Llama3(factor=8.0, original_len=64))
    ),
    "qwen2/2": dict(
        n_kv_heads=2, positions=rope(1e6), bias=True, output_bias=False, window=5
    ),
    "qwen3/0": dict(**wide, positions=rope(1e6), qk_norm=norm),
    "gemma2/0": dict(**wide, positions=rope(1e4), softcap=2.0, scale=7**-0.5, window=5),
    "gemma3/0": dict(
        **wide, positions=rope(1e4), qk_norm=norm, scale=7**-0.5, window=5
    ),
    "gemma3/2": dict(
        **wide,
        positions=rope(1e6, Interpolation(factor=8.0)),
        qk_norm=norm,
        scale=7**-0.5,
    ),
    "gpt_oss/0": dict(
        **wide,
        positions=rope(1.5e5, Yarn(factor=32.0, original_len=4096, truncate=False)),
        bias=True,
        sinks=True,
        window=5,
    ),
    "olmo2/0": dict(
        n_kv_heads=2, positions=rope(5e5), qk_norm=norm, qk_norm_at="all_heads"
    ),
    "olmo3/2": dict(
        n_kv_heads=2,
        positions=rope(100.0, small_yarn()),
        qk_norm=norm,
        qk_norm_at="all_heads",
    ),
    "qwen3_next/1": dict(
        **wide, positions=rope(1e4, fraction=1 / 3), qk_norm=norm, gate=SigmoidGate
    ),
    "llama4/0": dict(
        **wide,
        positions=rope(5e5, layout="interleaved"),
        qk_norm=norm,
        qk_norm_at="after_positions",
        chunk=5,
    ),
    "llama4/1": dict(**wide, positions=part(QueryTemperature, strength=0.5, period=4)),
}
mla = dict(
    kv_rank=10, d_head=6, d_rope=4, d_value=8, latent_norm=part(RMSNorm, eps=1e-6)
)
LATENT = {
    "deepseek_v2/0": dict(
        **mla,
        q_rank=None,
        positions=rope(
            100.0, small_yarn(mscale=0.707, mscale_all_dim=0.707), layout="interleaved"
        ),
        scale=10**-0.5 * small_yarn().m(0.707) ** 2,
    ),
    "deepseek_v3/0": dict(
        **mla,
        q_rank=14,
        positions=rope(
            100.0, small_yarn(mscale=1.0, mscale_all_dim=1.0), layout="interleaved"
        ),
        scale=10**-0.5 * small_yarn().m(1.0) ** 2,
    ),
}
ZERO_CENTRED = ("gemma3", "qwen3_next")  # their gain is 1 + weight


@pytest.mark.parametrize("name", [*FAMILIES, *LATENT])
def test_equals_transformers(golden_attention, assert_within, name):
    w = golden_attention(name)
    if name in LATENT:
        attention = LatentAttention(32, 4, **LATENT[name], rngs=nnx.Rngs(0))
        ours = latent_parameters(w)
    else:
        attention = GroupedQueryAttention(32, 4, **FAMILIES[name], rngs=nnx.Rngs(0))
        ours = grouped_parameters(w, name, attention)
    graphdef, params, rest = nnx.split(attention, nnx.Param, ...)
    flat = dict(nnx.to_flat_state(params))
    for path, value in ours.items():
        variable = flat.pop(tuple(path.split("/")))
        assert variable.shape == value.shape, path
        variable.set_value(value)
    assert not flat, "parameters that the checkpoint does not have"

    @jax.jit
    def forward_and_backward(params, x, dy):
        run = lambda params, x: nnx.merge(graphdef, params, rest)(x, SHAPE)  # noqa: E731
        y, pull = jax.vjp(run, params, x)
        return y, pull(dy)

    y, (d_params, dx) = forward_and_backward(params, w["x"], w["dy"])
    assert_within(y, w["y"], 1e-5, "y")
    assert_within(dx, w["dx"], 1e-4, "dx")
    for path, expected in gradients(w, name).items():
        got = d_params
        for key in path.split("/"):
            got = got[key]
        # A bias of the keys moves all scores of a query alike: its gradient is
        # rounding noise where nothing rotates.
        atol = 1e-4 * float(jnp.abs(expected).max()) + 1e-6
        assert jnp.abs(got[...] - expected).max() <= atol, path


def test_every_case_of_the_file_is_tested():
    names = {"/".join(k.split("/")[:2]) for k in load_file(GOLDEN)}
    assert {n for n in names if not n.startswith("units")} == {*FAMILIES, *LATENT}


def grouped_parameters(w, name, attention):
    """The checkpoint under our names; torch stores [out, in]."""
    family = name.split("/")[0]
    if family == "gpt2":  # which stores [in, out], q, k and v side by side
        found = {
            f"{part}/{what}": array
            for what, joint in (("kernel", "weight"), ("bias", "bias"))
            for part, array in zip(
                "qkv", jnp.split(w[f"c_attn.{joint}"], 3, axis=-1), strict=True
            )
        }
        return found | {"o/kernel": w["c_proj.weight"], "o/bias": w["c_proj.bias"]}
    found = {f"{part}/kernel": w[f"{part}_proj.weight"].T for part in "qkvo"}
    found |= {
        f"{part}/bias": w[f"{part}_proj.bias"]
        for part in "qkvo"
        if f"{part}_proj.bias" in w
    }
    one = 1.0 if family in ZERO_CENTRED else 0.0
    for part in ("q_norm", "k_norm"):
        if f"{part}.weight" in w:
            found[f"{part}/gain"] = one + w[f"{part}.weight"]
        elif attention.q_norm is not None:  # a norm without gain
            found[f"{part}/gain"] = jnp.ones(12)
    if "sinks" in w:
        found["sinks"] = w["sinks"]
    if family == "qwen3_next":  # per head, query then gate
        both = found["q/kernel"].reshape(32, 4, 2, 12)
        found["q/kernel"] = both[:, :, 0].reshape(32, 48)
        found["gate/proj/kernel"] = both[:, :, 1].reshape(32, 48)
    return found


def latent_parameters(w):
    kv_down, k_rope = jnp.split(w["kv_a_proj_with_mqa.weight"].T, [10], axis=1)
    up = w["kv_b_proj.weight"].T.reshape(10, 4, 14)  # per head, key then value
    found = {
        "kv_down/kernel": kv_down,
        "k_rope/kernel": k_rope,
        "kv_norm/gain": w["kv_a_layernorm.weight"],
        "k_up/kernel": up[..., :6].reshape(10, 24),
        "v_up/kernel": up[..., 6:].reshape(10, 32),
        "o/kernel": w["o_proj.weight"].T,
    }
    if "q_proj.weight" in w:
        return found | {"q/kernel": w["q_proj.weight"].T}
    return found | {
        "q_down/kernel": w["q_a_proj.weight"].T,
        "q_norm/gain": w["q_a_layernorm.weight"],
        "q_up/kernel": w["q_b_proj.weight"].T,
    }


def gradients(w, name):
    """Gradients in vectors: gains, biases, sinks."""
    names = {
        "q_norm.weight": "q_norm/gain",
        "k_norm.weight": "k_norm/gain",
        "q_a_layernorm.weight": "q_norm/gain",
        "kv_a_layernorm.weight": "kv_norm/gain",
        "sinks": "sinks",
        "c_proj.bias": "o/bias",
        **{f"{part}_proj.bias": f"{part}/bias" for part in "qkvo"},
    }
    found = {
        ours: w[f"grad.{theirs}"]
        for theirs, ours in names.items()
        if f"grad.{theirs}" in w
    }
    if name.startswith("gpt2"):
        thirds = jnp.split(w["grad.c_attn.bias"], 3)
        found |= dict(zip(("q/bias", "k/bias", "v/bias"), thirds, strict=True))
    return found
