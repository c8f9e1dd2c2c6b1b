"""Stream and gradients of deep stacks at initialization, as measured outside the project.

One network: L sub-layers F(u) = relu(u W1) W2 of width 64 and 256, W1 ~ N(0, 2 / 64),
W2 ~ N(0, 1 / 256); 256 tokens x ~ N(0, 1); loss mean(out * R), R ~ N(0, 1); LayerNorm
without gain, eps 1e-5; float64. Draws in the order W1, W2, x, R from
numpy.random.default_rng(seed); the mean of three seeds. The numbers were measured with
plain NumPy networks written for this purpose, three digits each.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from blocks.block import Block
from blocks.ffn.mlp import MLP
from blocks.norms.layernorm import LayerNorm
from blocks.parameters import layout_of
from blocks.placement import NONE, POST, PRE, Placement
from blocks.placements.mix import Mix
from blocks.residual.add import Add
from blocks.residual.constants import deepnorm, sub_ln
from blocks.residual.deepnorm import DeepNorm
from blocks.residual.depth_mup import DepthMuP
from blocks.residual.keel import Keel
from blocks.residual.layernorm_scaling import LayerNormScaling
from blocks.residual.layerscale import LayerScale
from blocks.residual.residual_dual import ResiDual
from blocks.residual.skipinit import SkipInit
from blocks.stack import Stack

D, D_FF, ROWS = 64, 256, 256
XAVIER = (
    np.sqrt(2 / (D + D_FF)) / np.sqrt(2 / D),
    np.sqrt(2 / (D + D_FF)) * np.sqrt(D_FF),
)
OUT = Placement(in_norm=False, out_norm=True)
PERI = Placement(out_norm=True)
KEEL = Placement(post_norm=True)
SUB = Placement(inner_norm=True)
norm = functools.partial(LayerNorm, eps=1e-5)

# name: (scheme of L, placement, factors of the initial W1 and W2 of L,
#        {L: (RMS of the stream, |dLoss/dW1| of the first, of the last sub-layer)})
MEASURED = {
    "none": (Add(), NONE, None, {12: (74, 0.0322, 0.0309)}),
    "post": (Add(), POST, None, {12: (1, 0.0322, 0.0302), 48: (1, 0.0573, 0.0288)}),
    "post, Xavier": (Add(), POST, lambda n: XAVIER, {12: (1, 0.0502, 0.0482)}),
    "pre": (
        Add(),
        PRE,
        None,
        {12: (3.54, 0.0326, 0.0123), 48: (6.74, 0.0361, 0.00646)},
    ),
    "pre, W2 / sqrt(L)": (
        Add(),
        PRE,
        lambda n: (1, (2 * n) ** -0.5),
        {12: (1.41, 0.0125, 0.00895), 48: (1.41, 0.00658, 0.00460)},
    ),
    "peri": (
        Add(),
        PERI,
        None,
        {12: (3.53, 0.0327, 0.0131), 48: (6.85, 0.037, 0.00645)},
    ),
    "out": (
        Add(),
        OUT,
        None,
        {12: (3.53, 0.0329, 0.0130), 48: (6.86, 0.0369, 0.00639)},
    ),
    "deepnorm": (
        DeepNorm(),
        POST,
        lambda n: tuple(deepnorm(n)[1] * x for x in XAVIER),
        {12: (1, 0.0112, 0.0113), 48: (1, 0.00561, 0.00562)},
    ),
    "sub": (
        Add(),
        SUB,
        lambda n: tuple(sub_ln(n) * x for x in XAVIER),
        {12: (6.90, 0.118, 0.0219)},
    ),
    "residual_dual": (
        ResiDual(),
        POST,
        None,
        {12: (3.64, 0.0598, 0.0423), 48: (6.62, 0.0903, 0.0352)},
    ),
    # Measured with a quarter of the sub-layers; 12 of 48 are 6 of 24 blocks.
    "mix": (Add(), Mix(), None, {48: (5.90, 0.04, 0.00743)}),
    "layernorm_scaling": (
        LayerNormScaling(),
        POST,
        None,
        {12: (2.43, 0.0315, 0.00736), 48: (2.86, 0.0338, 0.00317)},
    ),
    # m_L = L in the measurement; a block here has two sub-layers.
    "depth_mup": (
        DepthMuP(branch_scale=2**-0.5),
        PRE,
        None,
        {12: (1.41, 0.0125, 0.00895), 48: (1.41, 0.00658, 0.00460)},
    ),
    "completep": (
        DepthMuP(power=1.0, branch_scale=0.5),
        PRE,
        None,
        {12: (1.04, 3.68e-3, 3.56e-3), 48: (1.01, 9.31e-4, 9.21e-4)},
    ),
    "keel": (
        Keel(),
        KEEL,
        None,
        {12: (1, 3.60e-3, 3.61e-3), 48: (1, 9.04e-4, 9.06e-4)},
    ),
    "layerscale": (
        LayerScale(scale_init=0.1),
        PRE,
        None,
        {12: (1.06, 4.41e-3, 4.20e-3), 48: (1.21, 4.53e-3, 3.67e-3)},
    ),
    "skipinit": (SkipInit(scale_init=0.1), PRE, None, {12: (1.06, 4.41e-3, 4.20e-3)}),
}
# These normalize x first.
FAMILY_OF_POST = {"post", "post, Xavier", "deepnorm", "residual_dual", "keel", "mix"}


def cases():
    for name, (*_, values) in MEASURED.items():
        for n_sublayers in values:
            quick = n_sublayers == 12 and name in ("deepnorm", "layernorm_scaling")
            marks = () if quick else pytest.mark.slow
            yield pytest.param(name, n_sublayers, marks=marks)


@functools.cache
def layout(name, n_sublayers):
    residual, placement, _, _ = MEASURED[name]
    n_layers = n_sublayers // 2

    def make_block(*, layer, like, rngs):
        sublayer = functools.partial(MLP, D, D_FF, activation="relu")
        return Block(
            D,
            {
                site: (sublayer, norm, placement.at(site, like, n_layers))
                for site in ("attn", "ffn")
            },
            residual=residual,
            layer=layer,
            n_layers=n_layers,
            rngs=rngs,
        )

    kinds = [placement.at("attn", i, n_layers) for i in range(n_layers)]
    return layout_of(lambda: Stack(make_block, n_layers, kinds=kinds, rngs=nnx.Rngs(0)))


def network(name, n_sublayers, seed):
    """W1, W2 [n_sublayers, ...], x and R."""
    factors = MEASURED[name][2]
    rng = np.random.default_rng(seed)
    w1 = rng.standard_normal((n_sublayers, D, D_FF)) * np.sqrt(2 / D)
    w2 = rng.standard_normal((n_sublayers, D_FF, D)) / np.sqrt(D_FF)
    x, weights = rng.standard_normal((2, ROWS, D))
    by = factors(n_sublayers // 2) if factors else (1, 1)
    w1, w2 = by[0] * w1, by[1] * w2
    return w1, w2, (unit(x) if name in FAMILY_OF_POST else x), weights


def measure(name, n_sublayers):
    """network -> (gradients [n_sublayers, ...] of W1, stream at the end)."""
    residual, placement, *_ = MEASURED[name]
    own = layout(name, n_sublayers)
    # Learned factors at their initial values; gains 1, biases 0.
    constants = {"gain": 1.0, "bias": 0.0, "scale": getattr(residual, "scale_init", 0)}
    rest = {
        path: jnp.full(spec.shape, constants[spec.role], jnp.float64)
        for path, spec in own.specs.items()
        if spec.role in constants
    }
    places = sorted({path.split("/")[0] for path in own.specs})
    ends = residual.make_ends(D, n_layers=n_sublayers // 2, norm=norm, rngs=nnx.Rngs(0))

    def loss(w1, w2, x, weights):
        params, start = dict(rest), 0
        for place in places:  # blocks of equal placement, one run after the other
            stacked = own.specs[f"{place}/ffn/branch/up/kernel"].shape[0]
            for index, site in enumerate(("attn", "ffn")):
                of = slice(start + index, start + 2 * stacked, 2)
                params[f"{place}/{site}/branch/up/kernel"] = w1[of]
                params[f"{place}/{site}/branch/down/kernel"] = w2[of]
            start += 2 * stacked
        state, _ = own.merge(params, {})(ends.open(x), (ROWS, 1))
        stream = state[1] if name == "residual_dual" else state
        out = ends.close(state)
        out = unit(out) if placement not in (POST, KEEL) else out
        out = unit(out) if name == "layernorm_scaling" else out
        return jnp.mean(out * weights), stream

    return jax.jit(jax.grad(loss, has_aux=True))


def unit(x):
    centred = x - x.mean(-1, keepdims=True)
    return centred / jnp.sqrt(jnp.mean(centred**2, -1, keepdims=True) + 1e-5)


@pytest.mark.parametrize("name, n_sublayers", cases())
def test_stream_and_gradients_are_those_measured_outside(float64, name, n_sublayers):
    run, found = measure(name, n_sublayers), []
    for seed in range(3):
        gradient, stream = run(*network(name, n_sublayers, seed))
        first, last = np.linalg.norm(gradient[jnp.array([0, -1])], axis=(1, 2))
        found.append((np.sqrt(np.mean(stream**2)), first, last))
    expected = MEASURED[name][-1][n_sublayers]
    # Three digits are known.
    np.testing.assert_allclose(np.mean(found, axis=0), expected, rtol=5.1e-3)
