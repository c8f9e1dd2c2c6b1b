"""Constants of DeepNorm and Sub-LN: published values, and the kernels that get them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from blocks.attention.gate import SigmoidGate
from blocks.attention.grouped_query import GroupedQueryAttention
from blocks.ffn.swiglu import SwiGLU
from blocks.inits.xavier import XavierGaussian
from blocks.language_model import LanguageModel
from blocks.norms.rmsnorm import RMSNorm
from blocks.placement import POST
from blocks.residual.add import Add
from blocks.residual.constants import check_side, deepnorm, sub_ln
from blocks.residual.deepnorm import DeepNorm
from blocks.residual.fixup import Fixup, TFixup
from blocks.residual.sub_ln import SubLN
from blocks.site import Site

# The formulas of arXiv 2203.00555 table 1 and arXiv 2210.06423 figure 2, evaluated
# outside the project. N: (alpha, beta) of a decoder alone; encoder and decoder of a pair
# of equal depth; gamma of a decoder alone, of the encoder and decoder of a pair.
PUBLISHED = {
    6: (
        (1.861209718204, 0.379917842826),
        (1.417938140686, 0.496989240771),
        (2.059767143907, 0.343294523985),
        (1.576358667876, 1.547288380959, 1.700109337042),
    ),
    24: (
        (2.632148025905, 0.268642482956),
        (2.186759550324, 0.322257652834),
        (2.912950630244, 0.242745885854),
        (1.967536787689, 2.349172492833, 2.068010183489),
    ),
    96: (
        (3.722419436408, 0.189958921413),
        (3.372444251074, 0.208958235492),
        (4.119534287814, 0.171647261992),
        (2.292922888374, 3.150290384303, 2.379697560644),
    ),
    1000: (
        (6.687403049764, 0.105737126344),
        (7.014311019217, 0.100466032668),
        (7.400828044923, 0.095544279220),
        (2.756973423800, 4.503910113703, 2.829552538415),
    ),
}


@pytest.mark.parametrize("n", PUBLISHED)
def test_constants_are_those_of_the_papers(n):
    only, encoder, decoder, gammas = PUBLISHED[n]
    np.testing.assert_allclose(deepnorm(n), only, rtol=1e-11)
    np.testing.assert_allclose(deepnorm(n, "encoder"), encoder, rtol=1e-11)
    np.testing.assert_allclose(deepnorm(n, "decoder"), decoder, rtol=1e-11)
    found = [sub_ln(n, side) for side in ("only", "encoder", "decoder")]
    np.testing.assert_allclose(found, gammas, rtol=1e-11)


def test_a_decoder_of_another_depth_enters_the_encoder_only():
    assert deepnorm(6, "decoder", 24) == deepnorm(6, "decoder")
    np.testing.assert_allclose(
        deepnorm(6, "encoder", 24)[0], 0.81 * (6**4 * 24) ** (1 / 16), rtol=1e-12
    )
    np.testing.assert_allclose(
        sub_ln(6, "encoder", 24), np.sqrt(np.log(72) * np.log(12) / 3), rtol=1e-12
    )


@pytest.mark.parametrize("n", [6, 1000])
def test_a_traced_depth_gives_the_same(n):
    # n^4 m is 1e15 at 1000 blocks: it must not be formed in int32.
    for side in ("only", "encoder", "decoder"):
        found = jax.jit(lambda n, side=side: (*deepnorm(n, side), sub_ln(n, side)))(n)
        expected = (*deepnorm(n, side), sub_ln(n, side))
        np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize(
    "side, n, message", [("both", None, "'both'"), ("only", 0, "n_other_layers.*0")]
)
def test_wrong_sides_are_refused(side, n, message):
    for check in (check_side, DeepNorm.check, SubLN.check):
        with pytest.raises(ValueError, match=message):
            check(side=side, n_other_layers=n)
    with pytest.raises(ValueError, match="side"):
        TFixup.check(side="only")


# -- the kernels -----------------------------------------------------------------------

N_LAYERS = 3


def kernels(residual):
    """Initial kernels of a gated transformer, by the name of the map."""
    model = jax.jit(
        lambda: nnx.state(
            LanguageModel(
                7,
                8,
                n_layers=N_LAYERS,
                n_heads=2,
                d_ff=12,
                norm=RMSNorm,
                attention=functools.partial(GroupedQueryAttention, gate=SigmoidGate),
                ffn=SwiGLU,
                residual=residual,
                placement=POST,
                init=XavierGaussian(),
                rngs=nnx.Rngs(0),
            ),
            nnx.Param,
        )
    )()
    flat = {"/".join(map(str, p)): v[...] for p, v in nnx.to_flat_state(model)}
    flat = {k: v for k, v in flat.items() if k.endswith("kernel") or k == "table"}
    return {k.removeprefix("blocks/layers/"): v for k, v in flat.items()}


@functools.cache
def plain_kernels():
    return kernels(Add())


VALUE_PATH = {
    "attn/branch/v/kernel",
    "attn/branch/o/kernel",
    "ffn/branch/gate/kernel",
    "ffn/branch/up/kernel",
    "ffn/branch/down/kernel",
}


@pytest.mark.parametrize(
    "residual, factor",
    [
        (DeepNorm(), (8 * N_LAYERS) ** -0.25),
        (DeepNorm(side="encoder"), 0.87 * N_LAYERS ** (-5 / 16)),
        (DeepNorm(side="decoder"), (12 * N_LAYERS) ** -0.25),
        (SubLN(), np.sqrt(np.log(2 * N_LAYERS))),
        (TFixup(), (9 * N_LAYERS) ** -0.25),
        (TFixup(side="encoder"), 0.67 * N_LAYERS**-0.25),
    ],
    ids=lambda x: type(x).__name__,
)
def test_value_path_and_feed_forward_are_scaled_and_nothing_else(residual, factor):
    plain, scaled = plain_kernels(), kernels(residual)
    assert plain.keys() == scaled.keys() > VALUE_PATH
    for path, kernel in plain.items():
        by = factor if path in VALUE_PATH else 1.0
        np.testing.assert_allclose(scaled[path], by * kernel, rtol=1e-6, err_msg=path)


def test_fixup_starts_with_branches_of_zero():
    plain, scaled = plain_kernels(), kernels(Fixup(n_matrices=3))
    for path, kernel in plain.items():
        if path.endswith(("o/kernel", "down/kernel")):
            assert (scaled[path] == 0).all()
        else:
            # 2 N branches of 3 matrices: (2 N)^(-1 / 4).
            by = (2 * N_LAYERS) ** -0.25 if path in VALUE_PATH else 1.0
            np.testing.assert_allclose(scaled[path], by * kernel, rtol=1e-6)
    site = Site("ffn", jnp.int32(0), 8, 1, 2)
    assert Fixup().init_factor("hidden", site) == 16**-0.5
