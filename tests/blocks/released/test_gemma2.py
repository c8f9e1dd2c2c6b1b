"""Gemma 2: soft-caps, norms with 1 + weight around every sub-layer, scaled embedding.

transformers 5.24.0 modeling_gemma2.py. Every other layer sees a window, from the first.
"""

import pytest

from tests.blocks.released.conftest import sizes_of, slow, transposed

FAMILY = "gemma2"
ENDS = {
    "table": "model.embed_tokens.weight",
    "final_norm/gain": "model.norm.weight",
}
LAYER = "model.layers.{i}"
BLOCK = {
    "attn/in_norm/gain": f"{LAYER}.input_layernorm.weight",
    "attn/branch/q/kernel": (f"{LAYER}.self_attn.q_proj.weight", transposed),
    "attn/branch/k/kernel": (f"{LAYER}.self_attn.k_proj.weight", transposed),
    "attn/branch/v/kernel": (f"{LAYER}.self_attn.v_proj.weight", transposed),
    "attn/branch/o/kernel": (f"{LAYER}.self_attn.o_proj.weight", transposed),
    "attn/out_norm/gain": f"{LAYER}.post_attention_layernorm.weight",
    "ffn/in_norm/gain": f"{LAYER}.pre_feedforward_layernorm.weight",
    "ffn/branch/gate/kernel": (f"{LAYER}.mlp.gate_proj.weight", transposed),
    "ffn/branch/up/kernel": (f"{LAYER}.mlp.up_proj.weight", transposed),
    "ffn/branch/down/kernel": (f"{LAYER}.mlp.down_proj.weight", transposed),
    "ffn/out_norm/gain": f"{LAYER}.post_feedforward_layernorm.weight",
}
GLOBAL = "model.pattern.attention"


def overrides(config):
    assert config["rope_parameters"]["rope_type"] == "default"
    assert config["hidden_activation"] == "gelu_pytorch_tanh"
    alternating = ["sliding_attention", "full_attention"] * config["num_hidden_layers"]
    assert config["layer_types"] == alternating[: config["num_hidden_layers"]]
    same = {
        "softcap": config["attn_logit_softcapping"],
        "scale": config["query_pre_attn_scalar"] ** -0.5,
        "bias": config["attention_bias"],
        "positions.base": config["rope_parameters"]["rope_theta"],
    }
    return [
        *sizes_of(config),
        f"++model.embedding_scale={config['hidden_size'] ** 0.5}",
        f"++model.logit_softcap={config['final_logit_softcapping']}",
        "placement=sandwich",
        "norm=rmsnorm_zc",
        f"model.norm.eps={config['rms_norm_eps']}",
        "attention=gemma2",
        "positions=rope",
        f"model.attention.window={config['sliding_window']}",
        *(f"model.attention.{key}={value}" for key, value in same.items()),
        "pattern=every_nth",
        "model.pattern.every=2",
        f"+attention@{GLOBAL}=gemma2",
        f"+positions@{GLOBAL}.positions=rope",
        *(f"{GLOBAL}.{key}={value}" for key, value in same.items()),
        "ffn=geglu",
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
        "model.attention.window=6",
        slow("model.pattern.attention.window=5"),
        slow("model.attention.softcap=null"),
        slow("model.pattern.attention.softcap=50"),
        slow("model.attention.scale=null"),
        slow("model.pattern.attention.positions.base=1e6"),
        slow("model.logit_softcap=null"),
        slow("model.embedding_scale=1"),
        slow("norm=rmsnorm"),
        slow("model.norm.eps=1e-6"),
        slow("model.ffn.activation=gelu_erf"),
    ],
)
def test_a_wrong_detail_shows(released, wrong):
    released.assert_shows(wrong)


@pytest.mark.parametrize(
    "wrong", ["placement=pre", "placement=out", "model.tied_head=false"]
)
def test_another_model_does_not_take_the_checkpoint(released, wrong):
    released.assert_refused(wrong)
