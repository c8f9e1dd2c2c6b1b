"""GPT-2: LayerNorm, learned positions, biases everywhere, tanh-GELU, tied head.

transformers 5.24.0 modeling_gpt2.py. Its kernels are stored [in, out]; those of q, k
and v side by side.
"""

import numpy as np
import pytest

from tests.blocks.released.conftest import slow

FAMILY = "gpt2"


def third(number):
    """Of the columns of [q | k | v]."""
    return lambda w: np.split(w, 3, axis=-1)[number]


ENDS = {
    "table": "transformer.wte.weight",
    "embedding_positions/table": "transformer.wpe.weight",
    "final_norm/gain": "transformer.ln_f.weight",
    "final_norm/bias": "transformer.ln_f.bias",
}
LAYER = "transformer.h.{i}"
BLOCK = {
    "attn/in_norm/gain": f"{LAYER}.ln_1.weight",
    "attn/in_norm/bias": f"{LAYER}.ln_1.bias",
    "attn/branch/q/kernel": (f"{LAYER}.attn.c_attn.weight", third(0)),
    "attn/branch/k/kernel": (f"{LAYER}.attn.c_attn.weight", third(1)),
    "attn/branch/v/kernel": (f"{LAYER}.attn.c_attn.weight", third(2)),
    "attn/branch/q/bias": (f"{LAYER}.attn.c_attn.bias", third(0)),
    "attn/branch/k/bias": (f"{LAYER}.attn.c_attn.bias", third(1)),
    "attn/branch/v/bias": (f"{LAYER}.attn.c_attn.bias", third(2)),
    "attn/branch/o/kernel": f"{LAYER}.attn.c_proj.weight",
    "attn/branch/o/bias": f"{LAYER}.attn.c_proj.bias",
    "ffn/in_norm/gain": f"{LAYER}.ln_2.weight",
    "ffn/in_norm/bias": f"{LAYER}.ln_2.bias",
    "ffn/branch/up/kernel": f"{LAYER}.mlp.c_fc.weight",
    "ffn/branch/up/bias": f"{LAYER}.mlp.c_fc.bias",
    "ffn/branch/down/kernel": f"{LAYER}.mlp.c_proj.weight",
    "ffn/branch/down/bias": f"{LAYER}.mlp.c_proj.bias",
}


def overrides(config):
    assert config["activation_function"] == "gelu_new"  # the tanh form
    return [
        f"model.vocab_size={config['vocab_size']}",
        f"model.d_model={config['n_embd']}",
        f"model.n_layers={config['n_layer']}",
        f"model.n_heads={config['n_head']}",
        f"model.d_ff={config['n_inner']}",
        f"model.tied_head={config['tie_word_embeddings']}",
        "embedding_positions=learned",
        f"model.embedding_positions.max_len={config['n_positions']}",
        "placement=pre",
        "norm=layernorm",
        f"model.norm.eps={config['layer_norm_epsilon']}",
        "attention=gqa",
        "model.attention.bias=true",
        "positions=none",
        "ffn=mlp",
        "model.ffn.activation=gelu",
        "model.ffn.bias=true",
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
        "model.norm.eps=1e-5",
        slow("model.ffn.activation=gelu_erf"),
        slow("positions=rope"),
        slow("model.attention.scale=1"),
    ],
)
def test_a_wrong_detail_shows(released, wrong):
    released.assert_shows(wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        "model.attention.bias=false",
        "model.attention.output_bias=false",
        "model.ffn.bias=false",
        "model.tied_head=false",
        "norm=layernorm_nobias",
    ],
)
def test_another_model_does_not_take_the_checkpoint(released, wrong):
    released.assert_refused(wrong)
