"""gpt-oss: a mixture of clamped experts, sinks, YaRN, windows in every other layer.

transformers 5.24.0 modeling_gpt_oss.py. Experts are stored [experts, in, out], gate and
up interleaved; here the limit of their factors is 1, so that it is felt.
"""

import pytest

from blocks.ffn.packing import unpack
from tests.blocks.released.conftest import sizes_of, slow, transposed

FAMILY = "gpt_oss"


def gate(w):
    return unpack(w, "interleaved")[0]


def up(w):
    return unpack(w, "interleaved")[1]


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
    "attn/branch/q/bias": f"{LAYER}.self_attn.q_proj.bias",
    "attn/branch/k/bias": f"{LAYER}.self_attn.k_proj.bias",
    "attn/branch/v/bias": f"{LAYER}.self_attn.v_proj.bias",
    "attn/branch/o/bias": f"{LAYER}.self_attn.o_proj.bias",
    "attn/branch/sinks": f"{LAYER}.self_attn.sinks",
    "ffn/in_norm/gain": f"{LAYER}.post_attention_layernorm.weight",
    "ffn/branch/router/kernel": (f"{LAYER}.mlp.router.weight", transposed),
    "ffn/branch/router/bias": f"{LAYER}.mlp.router.bias",
    "ffn/branch/experts/gate/kernel": (f"{LAYER}.mlp.experts.gate_up_proj", gate),
    "ffn/branch/experts/gate/bias": (f"{LAYER}.mlp.experts.gate_up_proj_bias", gate),
    "ffn/branch/experts/up/kernel": (f"{LAYER}.mlp.experts.gate_up_proj", up),
    "ffn/branch/experts/up/bias": (f"{LAYER}.mlp.experts.gate_up_proj_bias", up),
    "ffn/branch/experts/down/kernel": f"{LAYER}.mlp.experts.down_proj",
    "ffn/branch/experts/down/bias": f"{LAYER}.mlp.experts.down_proj_bias",
}
GLOBAL = "model.pattern.attention"


def overrides(config):
    alternating = ["sliding_attention", "full_attention"] * config["num_hidden_layers"]
    assert config["layer_types"] == alternating[: config["num_hidden_layers"]]
    rope = config["rope_parameters"]
    assert rope["rope_type"] == "yarn"
    same = {
        "bias": config["attention_bias"],
        "positions.base": rope["rope_theta"],
        "positions.scaling.factor": rope["factor"],
        "positions.scaling.original_len": rope["original_max_position_embeddings"],
        "positions.scaling.beta_fast": rope["beta_fast"],
        "positions.scaling.beta_slow": rope["beta_slow"],
        "positions.scaling.truncate": rope["truncate"],
    }
    return [
        *sizes_of(config),
        "placement=pre",
        "norm=rmsnorm",
        f"model.norm.eps={config['rms_norm_eps']}",
        "attention=gpt_oss",
        "positions=rope_yarn",
        f"model.attention.window={config['sliding_window']}",
        *(f"model.attention.{key}={value}" for key, value in same.items()),
        "pattern=every_nth",
        "model.pattern.every=2",
        f"+attention@{GLOBAL}=gpt_oss",
        f"+positions@{GLOBAL}.positions=rope_yarn",
        *(f"{GLOBAL}.{key}={value}" for key, value in same.items()),
        "ffn=moe_gpt_oss",
        f"model.ffn.n_experts={config['num_local_experts']}",
        f"model.ffn.router.top_k={config['num_experts_per_tok']}",
        f"model.ffn.expert.limit={config['swiglu_limit']}",
        f"model.ffn.expert.alpha={config['swiglu_alpha']}",
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
        "model.ffn.expert.limit=7",
        slow("model.ffn.expert.offset=0"),
        slow("model.ffn.router.top_k=1"),
        slow("model.ffn.router.renormalize=false"),
        slow("model.attention.window=6"),
        slow("model.pattern.attention.window=5"),
        slow("model.attention.positions.scaling.attention_factor=1"),
        slow("model.pattern.attention.positions.scaling.truncate=true"),
        slow("model.norm.eps=1e-5"),
    ],
)
def test_a_wrong_detail_shows(released, wrong):
    released.assert_shows(wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        "model.attention.sinks=false",
        "model.pattern.attention.sinks=false",
        "model.attention.output_bias=false",
        "model.ffn.router.bias=false",
        "model.ffn.expert.bias=false",
    ],
)
def test_another_model_does_not_take_the_checkpoint(released, wrong):
    released.assert_refused(wrong)
