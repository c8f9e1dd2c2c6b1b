"""GPT-2: LayerNorm, learned positions, biases everywhere, tanh-GELU, tied head.

transformers 5.24.0 modeling_gpt2.py. Its kernels are stored [in, out]; those of q, k
and v side by side.
"""

import pytest

from tests.blocks.released.conftest import slow

FAMILY = "gpt2"


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
