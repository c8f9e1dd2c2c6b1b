"""Families without a test file of their own: siblings, and mixtures of experts.

transformers 5.24.0, modeling_<family>.py; kimi_k2 is DeepSeek-V3's code with other
numbers, minimind Qwen3's.
"""

import pytest

from tests.blocks.released.conftest import of, slow

QUICK = ("deepseek_v3", "gemma3")
FAMILIES = (
    *QUICK,
    *map(
        slow,
        (
            "deepseek_v2",
            "gemma",
            "kimi_k2",
            "llama2",
            "llama3_1",
            "llama4",
            "minimind",
            "minimind_moe",
            "mistral",
            "olmo3",
            "qwen2",
            "qwen3_moe",
        ),
    ),
)
# A detail of a family, and what the command line would be without it.
WRONG = [
    ("deepseek_v2", "model.attention.scale=null"),
    ("deepseek_v2", "model.ffn.router.top_groups=4"),
    ("deepseek_v2", "model.ffn.router.renormalize=true"),
    ("deepseek_v2", "model.ffn.router.scale=1"),
    ("deepseek_v3", "model.attention.positions.layout=half"),
    ("deepseek_v3", "model.attention.latent_norm.eps=1e-3"),
    ("deepseek_v3", "model.attention.scale=null"),
    ("deepseek_v3", "model.ffn.router.renormalize=false"),
    ("deepseek_v3", "model.ffn.router.top_groups=4"),
    ("gemma", "model.embedding_scale=1"),
    ("gemma3", "model.attention.positions.base=1e6"),
    ("gemma3", "model.pattern.attention.positions.scaling.factor=1"),
    ("gemma3", "model.pattern.attention.window=5"),
    ("gemma3", "model.attention.scale=null"),
    ("kimi_k2", "model.ffn.router.scale=2.5"),
    ("kimi_k2", "model.attention.positions.scaling.factor=1"),
    ("llama2", "model.norm.eps=1e-6"),
    ("llama3_1", "model.attention.positions.scaling.factor=1"),
    ("llama4", "model.attention.chunk=null"),
    ("llama4", "model.attention.qk_norm=null"),
    ("llama4", "model.pattern.attention.positions.strength=0"),
    ("llama4", "model.pattern.ffn.weigh_input=false"),
    ("llama4", "model.attention.positions.layout=half"),
    ("mistral", "model.attention.window=null"),
    ("minimind", "model.attention.positions.base=10000"),
    ("olmo3", "model.attention.window=6"),
    ("olmo3", "model.pattern.attention.positions.scaling.attention_factor=1"),
    ("qwen2", "model.pattern.attention.window=null"),
    ("qwen3_moe", "model.ffn.router.renormalize=false"),
    ("qwen3_moe", "model.ffn.router.top_k=1"),
]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_config_has_the_parameters_of_the_checkpoint(family):
    of(family).assert_same_parameters()


@pytest.mark.parametrize("family", FAMILIES)
def test_logits(family):
    of(family).assert_close(of(family).logits(), "logits")


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_stream_after_every_layer(family):
    of(family).assert_same_streams()


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_loss_and_every_gradient(family):
    of(family).assert_same_loss_and_gradients()


@pytest.mark.slow
@pytest.mark.parametrize("family, wrong", WRONG)
def test_a_wrong_detail_shows(family, wrong):
    of(family).assert_shows(wrong)
