"""Llama 3: RMSNorm rounded before its gain, rotary positions, SwiGLU, no biases.

transformers 5.24.0 modeling_llama.py
"""

import pytest

from tests.blocks.released.conftest import slow

FAMILY = "llama3"


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
