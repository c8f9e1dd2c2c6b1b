"""Qwen3: Llama's block with an RMSNorm on every head of q and k, before positions.

transformers 5.24.0 modeling_qwen3.py. Heads are wider than d_model / n_heads.
"""

import pytest

from tests.blocks.released.conftest import slow

FAMILY = "qwen3"


def test_the_config_has_the_parameters_of_the_checkpoint(released):
    released.assert_same_parameters()


def test_stream_after_every_layer_and_logits(released):
    released.assert_same_outputs()


def test_loss_and_every_gradient(released):
    released.assert_same_loss_and_gradients()


@pytest.mark.parametrize(
    "wrong",
    [
        "model.attention.qk_norm.eps=1e-6",
        slow("model.attention.qk_norm_at=after_positions"),
        slow("model.attention.positions.base=10000"),
        slow("model.norm.eps=1e-6"),
    ],
)
def test_a_wrong_detail_shows(released, wrong):
    released.assert_shows(wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        "model.attention.qk_norm_at=all_heads",
        "model.attention.qk_norm=null",
        "model.d_head=8",
    ],
)
def test_another_model_does_not_take_the_checkpoint(released, wrong):
    released.assert_refused(wrong)
