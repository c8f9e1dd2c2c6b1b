"""Initializers of released models and of papers, against the numbers they state."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from blocks.inits.lecun import LeCun
from blocks.inits.mitchell import Mitchell
from blocks.inits.mup import MuP
from blocks.inits.normal import Normal
from blocks.inits.truncated_normal import TruncatedNormal


def draw(init, use, shape, *, layer=0, n_sublayers=1):
    key = jax.random.key(0)
    return init.kernel(key, shape, use, layer=layer, n_sublayers=n_sublayers)


def ratio(init, other, use, **depth):
    """How many times larger the same draw is: exact, since the key is the same."""
    ratios = draw(init, use, (4, 4), **depth) / draw(other, use, (4, 4))
    np.testing.assert_allclose(ratios, ratios[0, 0], rtol=1e-5)
    return float(ratios[0, 0])


@pytest.mark.parametrize(
    "n_layers, std",
    # 0.02 / sqrt(2 n_layers): transformers models/gpt2/modeling_gpt2.py.
    [(6, 0.005773502692), (12, 0.004082482905), (48, 0.002041241452)],
)
def test_gpt2_output_kernels(n_layers, std):
    got = 0.02 * ratio(Normal(), Normal(), "output", n_sublayers=2 * n_layers)
    np.testing.assert_allclose(got, std, rtol=1e-5)


@pytest.mark.parametrize("cutoff", [1.0, 2.0, 3.0])
def test_truncated_normal_is_that_of_scipy(cutoff):
    x = draw(TruncatedNormal(std=0.02, cutoff=cutoff), "hidden", (256, 256))
    law = scipy.stats.truncnorm(-cutoff, cutoff, scale=0.02)
    # Five standard errors of the Kolmogorov distance of 2^16 draws are about 0.01.
    assert scipy.stats.kstest(np.asarray(x).ravel(), law.cdf).statistic < 0.01
    assert float(jnp.abs(x).max()) <= cutoff * 0.02 * (1 + 1e-6)


def test_a_bell_cut_at_two_keeps_0_88_of_its_deviation():
    # The constant by which TensorFlow and jax.nn.initializers correct for it.
    x = draw(TruncatedNormal(std=1.0, cutoff=2.0), "hidden", (512, 512))
    np.testing.assert_allclose(x.std(), 0.87962566103423978, rtol=0.005)


def test_no_finite_cutoff_is_the_normal_distribution():
    x = draw(TruncatedNormal(std=1.0, cutoff=30.0), "hidden", (256, 256))
    assert scipy.stats.kstest(np.asarray(x).ravel(), "norm").statistic < 0.01
    assert float(jnp.abs(x).max()) > 3.5


@pytest.mark.parametrize(
    "use, shape, layer, std",
    [
        # OLMo 7B: d_model 4096, mlp_hidden_size 22016 (half of it leaves the SwiGLU).
        # allenai/OLMo olmo/model.py: attn_out_std = 1 / sqrt(2 d_model (layer + 1)),
        # ff_out_std = 1 / sqrt(2 in_features (layer + 1)).
        ("output", (4096, 64), 0, 0.0110485),
        ("output", (4096, 64), 31, 0.00195313),
        ("output", (11008, 64), 31, 0.00119139),
        ("query", (4096, 64), 31, 0.015625),
        ("head", (4096, 64), 0, 0.015625),
    ],
)
def test_olmo_1_shrinks_branches_with_their_layer(use, shape, layer, std):
    left = scipy.stats.truncnorm(-3, 3).std()
    x = draw(Mitchell(), use, shape, layer=layer)
    np.testing.assert_allclose(x.std(), left * std, rtol=0.01)


def test_olmo_1_layers_start_the_same_at_every_depth():
    shallow = draw(Mitchell(), "output", (16, 16), layer=2, n_sublayers=8)
    deep = draw(Mitchell(), "output", (16, 16), layer=2, n_sublayers=96)
    np.testing.assert_array_equal(shallow, deep)


@pytest.mark.parametrize(
    "use, shape, std",
    [
        # T5 small: d_model 512, 8 heads of 64, d_ff 2048. transformers
        # models/t5/modeling_t5.py: (d_model d_kv)^-1/2, d_model^-1/2, d_model^-1/2,
        # (heads d_kv)^-1/2, d_ff^-1/2.
        ("query", (512, 512), 0.00552427),
        ("key", (512, 512), 0.0441942),
        ("hidden", (512, 2048), 0.0441942),
        ("output", (512, 512), 0.0441942),
        ("output", (2048, 512), 0.0220971),
    ],
)
def test_t5(use, shape, std):
    x = draw(LeCun(query_scale=0.125), use, shape)
    np.testing.assert_allclose(x.std(), std, rtol=0.01)


@pytest.mark.parametrize(
    "use, shape, std",
    [
        # Base width 256 with std 0.02, run at width 1024 (m = 4) with d_ff = 4 d_model.
        # EleutherAI/nanoGPT-mup model.py: init_std / sqrt(m) for c_attn, c_fc and both
        # c_proj. arXiv 2203.03466 table 3: the head's deviation falls as 1 / m.
        ("query", (1024, 1024), 0.01),
        ("hidden", (1024, 4096), 0.01),
        ("output", (1024, 1024), 0.01),
        ("output", (4096, 1024), 0.01),
        ("head", (1024, 256), 0.005),
    ],
)
def test_mup_at_four_times_the_base_width(use, shape, std):
    x = draw(MuP(head="width"), use, shape)
    np.testing.assert_allclose(x.std(), std, rtol=0.01)


def test_mup_keeps_activations_over_widths_and_lets_first_logits_fade():
    """The coordinate check of arXiv 2203.03466 at step 0."""
    init = MuP(std=1 / 8, base_width=64, head="width")
    sizes, logits = [], []
    for width in (64, 256, 1024):
        x = jax.random.normal(jax.random.key(1), (32, width))
        sizes.append((x @ draw(init, "hidden", (width, 256))).std())
        logits.append((x @ draw(init, "head", (width, 256))).std())
    np.testing.assert_allclose(sizes, 1.0, rtol=0.05)
    np.testing.assert_allclose(logits, [1.0, 0.5, 0.25], rtol=0.05)


def test_mup_is_the_standard_rule_at_the_base_width():
    mup, normal = MuP(std=0.02, base_width=64), Normal(std=0.02, depth_power=0.0)
    for use in ("hidden", "query", "key", "value", "output"):
        np.testing.assert_array_equal(
            draw(mup, use, (64, 64)), draw(normal, use, (64, 64))
        )
    assert not draw(mup, "head", (64, 64)).any()


def test_mup_refuses_a_head_it_does_not_know():
    with pytest.raises(ValueError, match="head must be one of zero, width, got 'one'"):
        MuP.check(head="one")
