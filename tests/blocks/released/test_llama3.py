"""Llama 3: RMSNorm rounded before its gain, rotary positions, SwiGLU, no biases.

transformers 5.24.0 modeling_llama.py
"""

import pytest

from tests.blocks.released.conftest import transposed

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
        f"model.vocab_size={config['vocab_size']}",
        f"model.d_model={config['hidden_size']}",
        f"model.n_layers={config['num_hidden_layers']}",
        f"model.n_heads={config['num_attention_heads']}",
        f"model.n_kv_heads={config['num_key_value_heads']}",
        f"model.d_head={config['head_dim']}",
        f"model.d_ff={config['intermediate_size']}",
        f"model.tied_head={config['tie_word_embeddings']}",
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
        "model.attention.positions.base=10000",
        "model.attention.positions.layout=interleaved",
        "model.attention.scale=1",
        "ffn=geglu",
    ],
)
def test_a_wrong_detail_shows(released, wrong):
    released.assert_shows(wrong)
