"""The published initial slopes of DyT."""

import numpy as np
import pytest
from flax import nnx

from blocks.norms.alphas import published_alpha
from experiments import api
from experiments.errors import ConfigError
from experiments.parts import Part

# arXiv 2503.10622: tables 11 (LLaMA 7B, 13B, 34B, 70B) and 12 (widths).
TABLE_11 = [(4096, 0.8, 0.2), (5120, 0.6, 0.15), (8192, 0.2, 0.05)]
TABLE_12 = [(1024, 1.0, 1.0), (2048, 1.0, 0.5), (4096, 0.8, 0.2), (8192, 0.2, 0.05)]


@pytest.mark.parametrize("d_model, attention, other", TABLE_11 + TABLE_12)
def test_values_of_the_tables(d_model, attention, other):
    assert published_alpha(d_model, "attn") == attention
    for site in ("ffn", "final", "both"):
        assert published_alpha(d_model, site) == other


@pytest.mark.parametrize(
    "d_model, site, alpha",
    [
        (3072, "attn", 0.9),  # halfway from 2048 to 4096
        (3072, "ffn", 0.35),
        (1280, "final", 0.875),  # a quarter of the way from 1024 to 2048
        (1, "attn", 1.0),
        (256, "ffn", 1.0),
        (16384, "attn", 0.2),
        (16384, "ffn", 0.05),
    ],
)
def test_linear_between_the_widths_and_constant_outside(d_model, site, alpha):
    assert published_alpha(d_model, site) == pytest.approx(alpha, rel=1e-12)


@pytest.mark.parametrize("site", ["attn", "ffn"])
def test_never_rises_with_the_width(site):
    alphas = [published_alpha(d, site) for d in range(512, 9000, 64)]
    assert alphas == sorted(alphas, reverse=True)


@pytest.mark.parametrize("site", ["embedding", "inner", "qk"])
def test_sites_outside_the_tables_have_the_general_value(site):
    assert published_alpha(8192, site) == 0.5


def test_no_site_is_refused():
    with pytest.raises(ValueError, match="such as attn, ffn, final, both, got None"):
        published_alpha(512, None)


def dyt(alpha_init):
    return {
        "_target_": "blocks.norms.dyt.DyT",
        "_partial_": True,
        "alpha_init": alpha_init,
    }


def test_auto_is_static_and_a_number_is_traced():
    auto, number = (Part.parse(dyt(x), "model.norm") for x in ("auto", 1))
    assert auto.traced_values("model.norm") == {}
    assert auto.static()["alpha_init"] == "auto"
    assert number.traced_values("model.norm") == {"model.norm.alpha_init": 1.0}


def test_a_misspelled_word_is_refused_with_its_path():
    with pytest.raises(ConfigError, match=r"^model\.norm\.alpha_init must be a number"):
        Part.parse(dyt("atuo"), "model.norm")


@pytest.mark.parametrize("norm", ["dyt", "derf"])
def test_auto_composes(norm):
    (config,) = api.compose([f"norm={norm}", "model.norm.alpha_init=auto"])
    assert config.model["norm"]["alpha_init"] == "auto"


@pytest.mark.parametrize("norm, factor", [("dyt", 1.0), ("derf", 1.205)])
def test_auto_reaches_every_norm_of_a_model(norm, factor):
    (config,) = api.compose(
        [
            f"norm={norm}",
            "model.norm.alpha_init=auto",
            "model.d_model=4096",
            *("model.n_heads=1", "model.d_head=2", "model.d_ff=2", "model.n_layers=2"),
            "model.vocab_size=2",
        ]
    )
    model = config.model.build({}, "model")
    model = model(rngs=nnx.Rngs(0)) if callable(model) else model
    state = nnx.to_flat_state(nnx.state(model, nnx.Param))
    alphas = {"/".join(map(str, p)): v[...] for p, v in state if p[-1] == "alpha"}
    expected = {
        "blocks/layers/attn/in_norm/alpha": [[0.8], [0.8]],
        "blocks/layers/ffn/in_norm/alpha": [[0.2], [0.2]],
        "final_norm/alpha": [0.2],
    }
    assert alphas.keys() == expected.keys()
    for path, values in expected.items():
        values = np.array(values) / factor
        np.testing.assert_allclose(alphas[path], values, rtol=1e-6, err_msg=path)
