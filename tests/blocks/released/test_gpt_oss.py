"""gpt-oss: a mixture of clamped experts, sinks, YaRN, windows in every other layer.

transformers 5.24.0 modeling_gpt_oss.py. Experts are stored [experts, in, out], gate and
up interleaved; here the limit of their factors is 1, so that it is felt.
"""

import pytest

from tests.blocks.released.conftest import slow

FAMILY = "gpt_oss"


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
