"""Llama 3: RMSNorm rounded before its gain, rotary positions, SwiGLU, no biases.

transformers 5.24.0 modeling_llama.py
"""

import pytest

from tests.blocks.released.conftest import sizes_of, slow, transposed

FAMILY = "llama3"
ENDS = {
    "table": "model.embed_tokens.weight",
    "final_norm/gain": "model.norm.weight",
    "head/kernel": ("lm_head.weight", transposed),
}
LAYER = "model.layers.{i}"
BLOCK = {
    "attn/in_norm/gain": f"{LAYER}.input_layernorm.weight",
    "attn/branch/q/kernel": (f"{LAYER}.self_attn.q_proj.weight", transposed),
    "attn/branch/k/kernel": (f"{LAYER}.self_attn.k_proj.weight", transposed),
    "attn/branch/v/kernel": (f"{LAYER}.self_attn.v_proj.weight", transposed),
    "attn/branch/o/kernel": (f"{LAYER}.self_attn.o_proj.weight", transposed),
    "ffn/in_norm/gain": f"{LAYER}.post_attention_layernorm.weight",
    "ffn/branch/gate/kernel": (f"{LAYER}.mlp.gate_proj.weight", transposed),
    "ffn/branch/up/kernel": (f"{LAYER}.mlp.up_proj.weight", transposed),
    "ffn/branch/down/kernel": (f"{LAYER}.mlp.down_proj.weight", transposed),
}


def overrides(config):
    assert config["rope_parameters"]["rope_type"] == "default"
    return [
        *sizes_of(config),
        "placement=pre",
        "norm=rmsnorm_llama",
        f"model.norm.eps={config['rms_norm_eps']}",
        "attention=gqa",
        f"model.attention.bias={config['attention_bias']}",
        "positions=rope",
        f"model.attention.positions.base={config['rope_parameters']['rope_theta']}",
        "ffn=swiglu",
        f"model.ffn.bias={config['mlp_bias']}",
    ]


def test_the_config_has_the_parameters_of_the_checkpoint(released):
    released.assert_same_parameters()


def test_stream_after_every_layer_and_logits(released):
    released.assert_same_outputs()


def test_loss_and_every_gradient(released):
    released.assert_same_loss_and_gradients()


@pytest.mark.parametrize(
    "wrong",
    [
        "model.norm.eps=1e-6",
        slow("model.attention.positions.base=10000"),
        slow("model.attention.positions.layout=interleaved"),
        slow("ffn=geglu"),
    ],
)
def test_a_wrong_detail_shows(released, wrong):
    released.assert_shows(wrong)


@pytest.mark.parametrize(
    "wrong", ["model.n_kv_heads=4", "placement=out", "model.attention.bias=true"]
)
def test_another_model_does_not_take_the_checkpoint(released, wrong):
    released.assert_refused(wrong)
