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
from blocks.inits.scaled import Scaled
from blocks.language_model import LanguageModel
from blocks.linear import Linear
from blocks.norms.rmsnorm import RMSNorm
from blocks.placement import POST
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


class Ones:
    """An initializer that lets a factor be read off."""

    def kernel(self, key, shape, use, *, layer, n_sublayers):
        return jnp.ones(shape, jnp.float32)

    def embedding(self, key, shape):
        return jnp.ones(shape, jnp.float32)


def factors(residual):
    """What the initial kernels of a gated block are multiplied by."""

    def linear(site):
        return functools.partial(Linear, init=Scaled(Ones(), residual, site))

    attention = GroupedQueryAttention(
        8,
        2,
        gate=SigmoidGate,
        linear=linear(Site("attn", 0, N_LAYERS, 0, 2)),
        rngs=nnx.Rngs(0),
    )
    ffn = SwiGLU(8, 12, linear=linear(Site("ffn", 0, N_LAYERS, 1, 2)), rngs=nnx.Rngs(0))
    maps = {name: getattr(attention, name) for name in "qkvo"}
    maps |= {"attention gate": attention.gate.proj}
    maps |= {name: getattr(ffn, name) for name in ("gate", "up", "down")}
    for name, own in maps.items():
        assert jnp.ptp(own.kernel[...]) == 0, name
    return {name: float(own.kernel[...][0, 0]) for name, own in maps.items()}


VALUE_PATH = {"v", "o", "gate", "up", "down"}


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
)
def test_value_path_and_feed_forward_are_scaled_and_nothing_else(residual, factor):
    for name, found in factors(residual).items():
        expected = factor if name in VALUE_PATH else 1.0
        np.testing.assert_allclose(found, expected, rtol=1e-6, err_msg=name)


def test_fixup_starts_with_branches_of_zero():
    # 2 N branches of 3 matrices: (2 N)^(-1 / 4).
    by = (2 * N_LAYERS) ** -0.25
    expected = {"v": by, "gate": by, "up": by, "o": 0.0, "down": 0.0}
    for name, found in factors(Fixup(n_matrices=3)).items():
        np.testing.assert_allclose(found, expected.get(name, 1.0), rtol=1e-6)
    site = Site("ffn", jnp.int32(0), 8, 1, 2)
    assert Fixup().init_factor("hidden", site) == 16**-0.5


def test_embedding_and_head_of_a_model_are_not_scaled():
    model = LanguageModel(
        7,
        8,
        n_layers=N_LAYERS,
        n_heads=2,
        d_ff=12,
        norm=RMSNorm,
        attention=GroupedQueryAttention,
        ffn=SwiGLU,
        residual=DeepNorm(),
        placement=POST,
        init=Ones(),
        rngs=nnx.Rngs(0),
    )
    beta = np.float32((8 * N_LAYERS) ** -0.25)
    assert (model.table[...] == 1).all()
    assert (model.head.kernel[...] == 1).all()
    for sublayer, names in (("attn", "qkvo"), ("ffn", ("gate", "up", "down"))):
        branch = getattr(model.blocks.layers, sublayer).branch
        for name in names:
            factor = beta if name in VALUE_PATH else 1.0
            np.testing.assert_allclose(
                getattr(branch, name).kernel[...], factor, rtol=1e-6
            )
