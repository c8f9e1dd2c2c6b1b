"""Qwen3-Next: gated DeltaNet, gated attention that turns a part, gated shared expert.

transformers 5.24.0 modeling_qwen3_next.py. Here the first layer alone is dense and the
second alone has softmax attention, so that there are three kinds of layers.
"""

import pytest

from tests.blocks.released.conftest import slow

FAMILY = "qwen3_next"


def test_the_config_has_the_parameters_of_the_checkpoint(released):
    released.assert_same_parameters()


def test_stream_after_every_layer_and_logits(released):
    released.assert_same_outputs()


def test_loss_and_every_gradient(released):
    released.assert_same_loss_and_gradients()


@pytest.mark.parametrize(
    "wrong",
    [
        "model.attention.head_norm.eps=1e-6",
        slow("model.attention.qk_norm.eps=1e-2"),
        slow("model.pattern.attention.positions.fraction=1.0"),
        slow("model.pattern.attention.qk_norm.eps=1e-6"),
        slow("model.ffn.router.renormalize=false"),
        slow("model.norm.eps=1e-6"),
    ],
)
def test_a_wrong_detail_shows(released, wrong):
    released.assert_shows(wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        "model.attention.kernel_size=3",
        "model.ffn.shared_gate=false",
        "model.pattern.attention.gate=null",
    ],
)
def test_another_model_does_not_take_the_checkpoint(released, wrong):
    released.assert_refused(wrong)
