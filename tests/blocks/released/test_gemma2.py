"""Gemma 2: soft-caps, norms with 1 + weight around every sub-layer, scaled embedding.

transformers 5.24.0 modeling_gemma2.py. Every other layer sees a window, from the first.
"""

import pytest

from tests.blocks.released.conftest import slow

FAMILY = "gemma2"


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
