"""OLMo 2: norms on the outputs of sub-layers, and on q and k as whole vectors.

transformers 5.24.0 modeling_olmo2.py
"""

import pytest

from tests.blocks.released.conftest import slow

FAMILY = "olmo2"


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
        slow("model.norm.eps=1e-6"),
        slow("model.attention.positions.base=10000"),
        slow("ffn=geglu"),
    ],
)
def test_a_wrong_detail_shows(released, wrong):
    released.assert_shows(wrong)


@pytest.mark.parametrize(
    "wrong", ["placement=pre", "placement=post", "model.attention.qk_norm_at=head"]
)
def test_another_model_does_not_take_the_checkpoint(released, wrong):
    released.assert_refused(wrong)
