"""Placements that bring other parts along, and who wins over them."""

import pytest

from experiments import api
from experiments.errors import UserError


def choices(*overrides):
    (config,) = api.compose(overrides)
    model = config.model
    return model["residual"].name, model["init"].name, model["placement"].name


def test_a_placement_chooses_its_scheme_and_initial_values():
    assert choices("placement=deepnorm") == ("DeepNorm", "XavierGaussian", "Placement")
    assert choices("placement=residual_dual")[0] == "ResiDual"
    assert choices("placement=pre") == ("Add", "Normal", "Placement")


def test_a_choice_of_ones_own_wins():
    assert choices("placement=deepnorm", "residual=add")[0] == "Add"
    assert choices("placement=deepnorm", "init=normal")[1] == "Normal"
    asked = ("placement=sub", "model.residual.side=decoder")
    assert api.compose(asked)[0].model["residual"]["side"] == "decoder"


def test_an_experiment_wins_over_a_placement():
    first = api.compose(["experiment=xiong", "placement=deepnorm"])[0]
    assert first.model["init"].name == "Kaiming"
    assert first.model["residual"].name == "DeepNorm"


def test_hybrid_brings_an_attention_with_norms_of_q_k_and_v():
    (config,) = api.compose(["placement=hybrid"])
    attention = config.model["attention"]
    assert (attention.name, attention["qk_norm"].name) == (
        "QKVNormAttention",
        "RMSNorm",
    )


def test_normformer_scales_heads_and_needs_an_attention():
    (config,) = api.compose(["placement=normformer"])
    assert config.model["attention"]["gate"].name == "HeadScale"
    assert config.model["placement"]["attn"]["out_norm"]
    with pytest.raises(UserError, match="attention.*ResidualMLP has no such keyword"):
        api.compose(["placement=normformer", "model=residual_mlp", "task=depth"])


def test_a_sweep_may_mix_placements_with_and_without_parts():
    configs = api.compose(["placement=pre,deepnorm,post"])
    assert [c.model["residual"].name for c in configs] == ["Add", "DeepNorm", "Add"]


def test_a_pattern_takes_parts_by_their_groups():
    (config,) = api.compose(
        [
            "pattern=every_nth",
            "model.pattern.every=2",
            "+attention@model.pattern.attention=sliding",
        ]
    )
    pattern = config.model["pattern"]
    assert pattern["every"] == 2
    assert pattern["attention"]["window"] is not None
    assert config.model["attention"]["window"] is None
