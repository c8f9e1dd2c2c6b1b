"""What single schemes promise: where they meet the plain sum, and how they start."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from blocks.ffn.mlp import MLP
from blocks.grown_stack import GrownStack
from blocks.norms.rmsnorm import RMSNorm
from blocks.parameters import layout_of
from blocks.placement import NONE, POST, PRE, Placement
from blocks.residual.add import Add
from blocks.residual.admin import Admin, profile
from blocks.residual.attention_residuals import AttentionResiduals
from blocks.residual.b2t import B2T
from blocks.residual.deepnorm import DeepNorm
from blocks.residual.denseformer import DenseFormer
from blocks.residual.depth_mup import DepthMuP
from blocks.residual.fixup import Fixup
from blocks.residual.keel import Keel
from blocks.residual.layernorm_scaling import LayerNormScaling
from blocks.residual.layerscale import LayerScale
from blocks.residual.residual_dual import ResiDual
from blocks.residual.resscale import ResScale
from blocks.residual.rezero import ReZero
from blocks.residual.skipinit import SkipInit
from blocks.residual.sub_ln import SubLN
from blocks.residual_mlp import ResidualMLP
from blocks.site import Site

D_MODEL, N_LAYERS, PER_BLOCK = 6, 3, 2
NAMES = ("attn", "ffn")


def joints_of(scheme, post_norm=None):
    return [
        scheme.make_joint(
            D_MODEL,
            site=Site(NAMES[i % 2], i // 2, N_LAYERS, i % 2, PER_BLOCK),
            post_norm=post_norm,
            rngs=nnx.Rngs(0),
        )
        for i in range(N_LAYERS * PER_BLOCK)
    ]


def streams(scheme, post_norm=None, x=None, branch=jnp.tanh):
    """What branches F_i(u) = tanh(u W_i) read, and what comes out, at the start."""
    shape = (N_LAYERS * PER_BLOCK, D_MODEL, D_MODEL)
    weights = jax.random.normal(jax.random.key(1), shape) / np.sqrt(D_MODEL)
    x = jax.random.normal(jax.random.key(2), (4, D_MODEL)) if x is None else x
    ends = scheme.make_ends(D_MODEL, n_layers=N_LAYERS, norm=RMSNorm, rngs=nnx.Rngs(0))
    state, read = ends.open(x), []
    for i, joint in enumerate(joints_of(scheme, post_norm)):
        u, kept = joint.read(state, i)
        read.append(u)
        state = joint.write(state, branch(u @ weights[i]), kept, i)
    return jnp.stack([*read, ends.close(state)])


# -- where they meet the plain sum -----------------------------------------------------

PLAIN = [
    LayerScale(scale_init=1.0),
    SkipInit(scale_init=1.0),
    ReZero(scale_init=1.0),
    ResScale(),
    SubLN(),
    Keel(alpha=1.0),
    DepthMuP(power=0.0),
    DepthMuP(power=1.0, base_layers=N_LAYERS),
    Admin(),
    Admin(skips=(1.0,) * 6),
    Fixup(),
    DenseFormer(),
]


@pytest.mark.parametrize("post_norm", [None, RMSNorm], ids=["bare", "post_norm"])
@pytest.mark.parametrize("scheme", PLAIN, ids=lambda x: type(x).__name__)
def test_with_factors_of_one_it_is_the_plain_sum(scheme, post_norm):
    expected = streams(Add(), post_norm)
    np.testing.assert_allclose(streams(scheme, post_norm), expected, rtol=0, atol=1e-6)


def test_without_its_power_layernorm_scaling_is_pre_ln():
    def pre_ln(x):
        out, x = [], x
        shape = (N_LAYERS * PER_BLOCK, D_MODEL, D_MODEL)
        weights = jax.random.normal(jax.random.key(1), shape) / np.sqrt(D_MODEL)
        for weight in weights:
            u = x / jnp.sqrt(jnp.mean(x**2, -1, keepdims=True) + 1e-6)
            out.append(u)
            x = x + jnp.tanh(u @ weight)
        return jnp.stack([*out, x])

    x = jax.random.normal(jax.random.key(2), (4, D_MODEL))
    found = streams(LayerNormScaling(power=0.0), RMSNorm)
    np.testing.assert_allclose(found, pre_ln(x), rtol=0, atol=1e-6)


def test_the_stream_that_residual_reads_is_post_ln_and_the_other_the_plain_sum():
    post = streams(Add(), RMSNorm)
    dual = streams(ResiDual(), RMSNorm)
    np.testing.assert_allclose(dual[:-1], post[:-1], rtol=0, atol=1e-6)
    # out = x + norm(z) with gain 1: z is the embedding and all branches.
    rms = jnp.sqrt(jnp.mean((dual[-1] - post[-1]) ** 2, axis=-1))
    np.testing.assert_allclose(rms, 1.0, rtol=1e-5)


def test_b2t_with_one_sublayer_per_block_is_post_ln():
    site = Site("ffn", 0, N_LAYERS)
    make = dict(site=site, post_norm=RMSNorm, rngs=nnx.Rngs(0))
    ends = B2T().make_ends(D_MODEL, n_layers=1, norm=RMSNorm, rngs=nnx.Rngs(0))
    x, branch = jax.random.normal(jax.random.key(0), (2, 4, D_MODEL))
    state, joint = ends.open(x), B2T().make_joint(D_MODEL, **make)
    _, kept = joint.read(state, 0)
    found = ends.close(joint.write(state, branch, kept, 0))
    expected = Add().make_joint(D_MODEL, **make).write(x, branch, None, 0)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("post_norm", [None, RMSNorm])
def test_add_with_factors_of_one_keeps_the_bits_of_a_sum(post_norm):
    x, branch = jax.random.normal(jax.random.key(0), (2, 4, D_MODEL), jnp.bfloat16)
    joint = Add().make_joint(
        D_MODEL, site=Site("ffn", 0, 1), post_norm=post_norm, rngs=nnx.Rngs(0)
    )
    y = joint.write(x, branch, None, 0)
    plain = x + branch
    expected = plain if post_norm is None else joint.post_norm(plain)
    np.testing.assert_array_equal(y.astype("float32"), expected.astype("float32"))


def test_factors_are_applied_in_float32_and_rounded_once():
    # 3 * 1.0078125 rounded to bfloat16 first loses the last bit of the sum.
    x = jnp.full((1, 1), 1.0078125, jnp.bfloat16)
    joint = Add(skip=3.0, branch_scale=-3.0).make_joint(
        1, site=Site("ffn", 0, 1), rngs=nnx.Rngs(0)
    )
    branch = jnp.full((1, 1), 1.0, jnp.bfloat16)
    assert joint.write(x, branch, None, 0) == 3 * 0.0078125


# -- how they start --------------------------------------------------------------------


@pytest.mark.parametrize("scheme", [ReZero(), SkipInit()], ids=["rezero", "skipinit"])
def test_zero_factors_make_the_identity(scheme):
    read = streams(scheme)
    np.testing.assert_array_equal(read, jnp.broadcast_to(read[0], read.shape))


def test_rezero_has_one_factor_per_block_and_skipinit_one_per_sublayer():
    def factors(scheme):
        return [
            0 if joint.branch_scale is None else joint.branch_scale.shape[0]
            for joint in joints_of(scheme)
        ]

    assert factors(ReZero()) == [1, 0, 1, 0, 1, 0]
    assert factors(SkipInit()) == 6 * [1]
    assert factors(LayerScale()) == 6 * [D_MODEL]


@pytest.mark.parametrize("branches, expected", [((1, 0), 6), ((0, 1), 6), ((1, 1), 12)])
def test_both_sublayers_of_a_block_move_the_factor_of_rezero(branches, expected):
    ends = ReZero().make_ends(D_MODEL, n_layers=1, norm=RMSNorm, rngs=nnx.Rngs(0))
    joints = joints_of(ReZero())[:2]
    graphdef, factor = nnx.split(joints[0])

    def loss(factor):
        state = ends.open(jnp.zeros((1, D_MODEL)))
        both = nnx.merge(graphdef, factor), joints[1]
        for joint, value in zip(both, branches, strict=True):
            _, kept = joint.read(state, 0)
            state = joint.write(state, jnp.full((1, D_MODEL), float(value)), kept, 0)
        return jnp.sum(ends.close(state))

    gradient = jax.grad(loss)(factor)
    assert float(gradient["branch_scale"][...][0]) == expected


def test_attention_residuals_start_as_the_mean_of_what_there_is():
    found = streams(AttentionResiduals())
    shape = (N_LAYERS * PER_BLOCK, D_MODEL, D_MODEL)
    weights = jax.random.normal(jax.random.key(1), shape) / np.sqrt(D_MODEL)
    sources = [found[0]]
    for i, weight in enumerate(weights):
        sources.append(jnp.tanh(found[i] @ weight))
        mean = jnp.mean(jnp.stack(sources), axis=0)
        np.testing.assert_allclose(found[i + 1], mean, rtol=0, atol=1e-6)


def test_one_group_of_attention_residuals_sees_the_embedding_and_one_sum():
    found = streams(AttentionResiduals(n_groups=1))
    shape = (N_LAYERS * PER_BLOCK, D_MODEL, D_MODEL)
    weights = jax.random.normal(jax.random.key(1), shape) / np.sqrt(D_MODEL)
    total = 0
    for i, weight in enumerate(weights):
        total = total + jnp.tanh(found[i] @ weight)
        np.testing.assert_allclose(found[i + 1], (found[0] + total) / 2, atol=1e-6)


@pytest.mark.parametrize(
    "n_groups, visible",
    # Sources that the sub-layer after sub-layer i sees, of 6: runs of 1, 2, 3 and 6.
    [
        (None, [2, 3, 4, 5, 6, 7]),
        (3, [2, 2, 3, 3, 4, 4]),
        (2, [2, 2, 2, 3, 3, 3]),
        (4, [2, 2, 3, 3, 4, 4]),
        (9, [2, 3, 4, 5, 6, 7]),
    ],
)
def test_groups_cut_the_sublayers_into_runs(n_groups, visible):
    found = streams(
        AttentionResiduals(n_groups=n_groups),
        x=jnp.ones((1, D_MODEL)),
        branch=jnp.zeros_like,
    )
    # Only the embedding is not zero: its share is one over the number of sources.
    np.testing.assert_allclose(1 / found[1:, 0, 0], visible, rtol=1e-6)


def test_weights_of_denseformer_start_one_hot_on_the_newest():
    weights = [j.weights for j in joints_of(DenseFormer())]
    assert [w is None for w in weights] == [True, False] * N_LAYERS
    found = np.stack([w[...] for w in weights[1::2]])
    np.testing.assert_array_equal(found, np.eye(N_LAYERS + 1)[1:])


def test_denseformer_takes_every_second_source_after_every_second_block():
    def moved(dilation, period):
        scheme = DenseFormer(dilation=dilation, period=period)
        ends = scheme.make_ends(1, n_layers=3, norm=RMSNorm, rngs=nnx.Rngs(0))
        state, seen = ends.open(jnp.ones((1, 1))), []
        for layer in range(3):
            site = Site("ffn", layer, 3)
            joint = scheme.make_joint(1, site=site, rngs=nnx.Rngs(0))
            joint.weights[...] = jnp.ones(4)
            # The branch takes the stream to 10^(layer + 1).
            branch = 10.0 ** (layer + 1) - state[0]
            state = joint.write(state, branch, None, layer)
            seen.append(float(state[0][0, 0]))
        return seen

    assert moved(1, 1) == [11, 111, 1111]
    assert moved(2, 1) == [10, 101, 1010]
    assert moved(1, 2) == [10, 111, 1000]
    assert moved(2, 2) == [10, 101, 1000]


def test_skips_of_admin_are_per_sublayer():
    skips = (1.0, 1.5, 2.0, 2.5, 3.0, 3.5)
    joints = joints_of(Admin(skips=skips))
    for joint, skip in zip(joints, skips, strict=True):
        np.testing.assert_array_equal(joint.skip[...], np.full(D_MODEL, skip))
    with pytest.raises(ValueError, match="expected 6 numbers.*got 2"):
        joints_of(Admin(skips=(1.0, 2.0)))


class Waves:
    """An initializer that draws nothing, and so compiles fast."""

    def kernel(self, key, shape, use, *, layer, n_sublayers):
        del key, n_sublayers
        phase = jnp.arange(np.prod(shape), dtype=jnp.float32).reshape(shape)
        shift = 1.0 if use == "hidden" else 2.0
        wave = jnp.sin(phase * phase + shift * (layer + 1))
        return wave * np.sqrt(2 / shape[0])


def mlp(residual, placement=PRE, n_layers=3, **keywords):
    return functools.partial(
        ResidualMLP,
        8,
        d_ff=16,
        n_layers=n_layers,
        norm=RMSNorm,
        ffn=functools.partial(MLP, activation="relu"),
        residual=residual,
        placement=placement,
        init=Waves(),
        **keywords,
    )


def test_the_profile_of_admin_accumulates_the_variance_of_branches():
    model = mlp(Admin(), POST, n_layers=4)(rngs=nnx.Rngs(0))
    x = jax.random.normal(jax.random.key(0), (64, 8))
    found = profile(model.blocks, x, (64, 1))
    # By hand, from the definition.
    y, skip, expected = np.asarray(x, np.float64), 1.0, []
    kernels = model.blocks.layers.ffn.branch
    for i in range(4):
        up, down = (np.float64(k.kernel[...][i]) for k in (kernels.up, kernels.down))
        branch = np.maximum(y @ up, 0) @ down
        expected.append(skip)
        total = skip * y + branch
        skip = np.sqrt(np.var(skip * y) + np.var(branch))
        y = total / np.sqrt(np.mean(total**2, -1, keepdims=True) + 1e-6)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert found == sorted(found)
    assert found[0] == 1.0
    # A second run starts from them.
    again = mlp(Admin(skips=tuple(found)), POST, n_layers=4)(rngs=nnx.Rngs(0))
    np.testing.assert_allclose(
        again.blocks.layers.ffn_joint.skip[...][:, 0], found, rtol=1e-6
    )


# -- a depth that is an input of the program -------------------------------------------


@pytest.mark.parametrize(
    "residual, placement",
    [
        (DeepNorm(), POST),
        (Keel(), Placement(post_norm=True)),
        (DepthMuP(), PRE),
        (LayerNormScaling(), POST),
        (SubLN(), PRE),
        (Fixup(), NONE),
        (ReZero(scale_init=0.5), NONE),
        (B2T(), POST),
        (ResiDual(), POST),
    ],
    ids=lambda x: type(x).__name__,
)
def test_a_traced_depth_gives_the_same_network(residual, placement):
    x = jax.random.normal(jax.random.key(0), (5, 8))
    expected, _ = jax.jit(lambda: mlp(residual, placement)(rngs=nnx.Rngs(0))(x))()
    stack = functools.partial(GrownStack, capacity=4)

    @jax.jit
    def grown(n_layers):
        model = mlp(residual, placement, n_layers, stack=stack)(rngs=nnx.Rngs(0))
        taps = model.blocks.taps(jnp.float32)

        def loss(taps):
            out, _ = model(x, taps)
            return jnp.sum(out), out

        return jax.grad(loss, has_aux=True)(taps)

    taps, out = grown(jnp.int32(3))
    np.testing.assert_allclose(out, expected, rtol=0, atol=2e-5)
    assert all(jnp.isfinite(t).all() for t in jax.tree.leaves(taps))


@pytest.mark.parametrize(
    "scheme",
    [DenseFormer(), AttentionResiduals(), Admin(skips=(1.0,))],
    ids=lambda x: type(x).__name__,
)
def test_schemes_with_an_array_per_layer_refuse_a_traced_depth(scheme):
    def make(n_layers):
        stack = functools.partial(GrownStack, capacity=4)
        mlp(scheme, n_layers=n_layers, stack=stack)(rngs=nnx.Rngs(0))
        return n_layers

    with pytest.raises(ValueError, match="depth that is fixed"):
        jax.eval_shape(make, jnp.int32(3))


# -- what is refused -------------------------------------------------------------------


@pytest.mark.parametrize(
    "scheme, wrong, message",
    [
        (Add, dict(skip=float("nan")), "skip must be finite, got nan"),
        (
            LayerScale,
            dict(scale_init=float("inf")),
            "scale_init must be finite, got inf",
        ),
        (SkipInit, dict(scale_init=float("inf")), "scale_init must be finite, got inf"),
        (ReZero, dict(scale_init=float("inf")), "scale_init must be finite, got inf"),
        (Keel, dict(alpha=0.0), "alpha must be positive and finite, got 0.0"),
        (DepthMuP, dict(power=-1.0), "power must be finite and at least 0, got -1.0"),
        (DepthMuP, dict(base_layers=0), "base_layers must be at least 1, got 0"),
        (Fixup, dict(n_matrices=1), "n_matrices must be at least 2, got 1"),
        (Admin, dict(skips=(1.0, -1.0)), "skips must be positive and finite, got -1.0"),
        (DenseFormer, dict(dilation=0), "dilation must be at least 1, got 0"),
        (DenseFormer, dict(period=0), "period must be at least 1, got 0"),
        (AttentionResiduals, dict(n_groups=0), "n_groups must be at least 1 or null"),
        (AttentionResiduals, dict(eps=-1.0), "eps"),
        (LayerNormScaling, dict(power=float("nan")), "power must be finite, got nan"),
    ],
)
def test_wrong_values_are_refused_by_name(scheme, wrong, message):
    scheme.check()
    with pytest.raises(ValueError, match=message):
        scheme.check(**wrong)


def test_attention_residuals_refuse_a_post_norm():
    with pytest.raises(ValueError, match="post_norm has no meaning"):
        joints_of(AttentionResiduals(), RMSNorm)


def test_layout_of_a_learned_factor():
    layout = layout_of(lambda: mlp(LayerScale())(rngs=nnx.Rngs(0)))
    spec = layout.specs["blocks/layers/ffn_joint/branch_scale"]
    assert (spec.role, spec.shape, spec.n_stacked) == ("scale", (3, 8), 1)
