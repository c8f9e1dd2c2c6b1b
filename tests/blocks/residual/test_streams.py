"""Several streams through a whole network: where they start, and that they part."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from blocks.ffn.mlp import MLP
from blocks.inits.xavier import XavierGaussian
from blocks.norms.rmsnorm import RMSNorm
from blocks.oracle import streams as oracle
from blocks.parameters import layout_of
from blocks.placement import Placement
from blocks.residual.add import Add, AddEnds, AddJoint
from blocks.residual.frac_connections import FracConnections
from blocks.residual.go_mhc import GoMHC
from blocks.residual.hyper_connections import HyperConnections
from blocks.residual.identity_hc import IdentityHC
from blocks.residual.mhc import MHC
from blocks.residual.mhc_lite import MHCLite
from blocks.residual.orthogonal import Orthogonal
from blocks.residual.stream_ends import StreamEnds
from blocks.residual.streams import projected, weighted, written
from blocks.residual_mlp import ResidualMLP
from blocks.site import Site

D_MODEL, N_LAYERS = 8, 5
# It is the arithmetic that is tested, not the compiler: half the time.
QUICKLY = {"xla_backend_optimization_level": 0}


def make_model(residual, final_norm=True):
    return ResidualMLP(
        D_MODEL,
        n_layers=N_LAYERS,
        d_ff=16,
        norm=RMSNorm,
        ffn=MLP,
        residual=residual,
        placement=Placement(final_norm=final_norm),
        init=XavierGaussian(),
        dtype="float64" if jax.config.jax_enable_x64 else "float32",
        rngs=nnx.Rngs(0),
    )


@functools.cache
def start_of(residual, dtype="float64", final_norm=False):
    """Output, gradients of kernels, and parameters at the first step."""
    layout = layout_of(lambda: make_model(residual, final_norm))
    params = layout.split(make_model(residual, final_norm))[0]
    x, weights = (jnp.asarray(v, dtype) for v in rows())
    params = {k: v.astype(dtype) for k, v in params.items()}

    def loss(params):
        y, _ = layout.merge(params, {})(x)
        return jnp.mean(weights * y), y

    step = jax.value_and_grad(loss, has_aux=True)
    (_, y), gradient = jax.jit(step, compiler_options=QUICKLY)(params)
    return y, {k: v for k, v in gradient.items() if "kernel" in k}, params


def rows():
    return np.random.default_rng(0).normal(size=(2, 6, D_MODEL))


UNIFORM = dict(alpha_init=0.0)
STARTS_AS_PRE_LN = {
    "hc": HyperConnections(),
    "hc_static": HyperConnections(is_dynamic=False, n_streams=3),
    "hc_single": HyperConnections(n_streams=1),
    "frac": FracConnections(),
    "mhc": MHC(**UNIFORM),
    "mhc_mixing": MHC(n_streams=2, off_diagonal_init=-0.5, **UNIFORM),
    "identity_hc": IdentityHC(n_streams=3, **UNIFORM),
}
MORE = {
    "hc_eight": HyperConnections(n_streams=8),
    "frac_single": FracConnections(n_streams=1),
    "go_mhc": GoMHC(n_streams=3, **UNIFORM),
    "mhc_lite": MHCLite(start="uniform", n_streams=3, phi_std=0.02, **UNIFORM),
}


@pytest.mark.parametrize(
    "residual",
    [pytest.param(r, id=name) for name, r in STARTS_AS_PRE_LN.items()]
    + [pytest.param(r, id=name, marks=pytest.mark.slow) for name, r in MORE.items()],
)
def test_starts_as_a_plain_pre_ln_network(float64, residual):
    # Streams are equal, read weights sum to 1, write weights are 1, and rows of the
    # mixing sum to 1: each stream is then that of the plain network. Biases are rounded
    # to float32, which -ln(n - 1) feels.
    plain, plain_gradient, _ = start_of(Add())
    y, gradient, _ = start_of(residual)
    np.testing.assert_allclose(y, plain, rtol=0, atol=1e-6 * np.abs(plain).max())
    assert gradient.keys() == plain_gradient.keys()
    for path, want in plain_gradient.items():
        atol = 1e-6 * np.abs(want).max()
        np.testing.assert_allclose(gradient[path], want, rtol=0, atol=atol)


def test_starts_as_a_plain_pre_ln_network_up_to_a_factor_with_a_head(float64):
    plain, _, _ = start_of(Add())
    y, _, _ = start_of(MHC(reduce="head", alpha_init=0.0))
    # The head has a gate of its own, so its weights differ a little by token.
    y, plain = (v / np.linalg.norm(v, axis=-1, keepdims=True) for v in (y, plain))
    np.testing.assert_allclose(y, plain, rtol=0, atol=1e-6)


@pytest.mark.parametrize("residual", [MHC(start="onehot", alpha_init=0.0), MHCLite()])
def test_onehot_biases_do_not_start_as_pre_ln(float64, residual):
    plain, _, _ = start_of(Add())
    y, _, _ = start_of(residual)
    assert np.abs(y - plain).max() > 1e-2 * np.abs(plain).max()


def test_gates_at_their_published_value_stay_close_to_pre_ln(float64):
    plain, _, _ = start_of(Add())
    y, _, _ = start_of(MHC())
    error = np.abs(y - plain).max() / np.abs(plain).max()
    assert 1e-6 < error < 2e-2


def test_sum_and_mean_differ_by_a_factor(float64):
    mean, _, _ = start_of(HyperConnections())
    total, _, _ = start_of(HyperConnections(reduce="sum"))
    np.testing.assert_allclose(total, 4 * mean, rtol=1e-9)


@pytest.mark.parametrize("make", [MHC, MHCLite, IdentityHC, Orthogonal, GoMHC])
def test_a_single_stream_is_the_plain_residual_without_parameters(make):
    residual = make(n_streams=1, reduce="head")
    assert isinstance(residual.make_ends(8, n_layers=1, norm=None, rngs=None), AddEnds)
    joint = residual.make_joint(8, site=Site("ffn", 0, 1), rngs=None)
    assert isinstance(joint, AddJoint)
    assert (joint.post_norm, joint.skip, joint.branch_scale) == (None, 1.0, 1.0)


# -- symmetry --------------------------------------------------------------------------


def test_equal_streams_part_unless_nothing_makes_them(float64):
    # Measured elsewhere over 200 steps of a network of 6 sub-layers, width 16: spread
    # 4e-15 without anything to break the symmetry, 1e-2 with random phi, 4 with one-hot.
    starts = {
        "nothing": MHC(phi_std=0.0),
        "random_phi": MHC(),
        "onehot": MHC(start="onehot", phi_std=0.0),
    }
    layout = layout_of(lambda: make_model(MHC()))
    members = [layout.split(make_model(r))[0] for r in starts.values()]
    members = jax.tree.map(lambda *p: jnp.stack(p).astype(jnp.float64), *members)
    x, weights = (jnp.asarray(v) for v in rows())

    def streams(params):
        model = layout.merge(params, {})
        return model.blocks(model.ends.open(x), (len(x), 1))[0]

    def loss(params):
        return jnp.mean(weights * layout.merge(params, {})(x)[0])

    @functools.partial(jax.jit, compiler_options=QUICKLY)
    @jax.vmap
    def spread(params):
        def descend(params, _):
            step = jax.grad(loss)(params)
            return jax.tree.map(lambda p, g: p - 0.5 * g, params, step), None

        params, _ = jax.lax.scan(descend, params, length=20)
        state = streams(params)
        return jnp.abs(state - state.mean(axis=0)).max()

    found = dict(zip(starts, np.asarray(spread(members)), strict=True))
    assert found["nothing"] < 1e-13
    assert found["random_phi"] > 1e-5
    assert found["onehot"] > 1e-1


# -- ends ------------------------------------------------------------------------------


def test_first_leaves_the_other_streams_empty():
    ends = StreamEnds(4, n_streams=3, expand="first", reduce="sum", rngs=nnx.Rngs(0))
    x = jnp.arange(8.0).reshape(2, 4)
    state = ends.open(x)
    np.testing.assert_array_equal(state[0], x)
    assert not state[1:].any()
    np.testing.assert_array_equal(ends.close(state), x)


@pytest.mark.parametrize("reduce", ["mean", "sum", "head"])
def test_reductions_equal_the_oracle(float64, fill, reduce):
    ends = StreamEnds(
        4, n_streams=3, reduce=reduce, coefficient_eps=0.25, rngs=nnx.Rngs(0)
    )
    rng = np.random.default_rng(0)
    params = {}
    if reduce == "head":
        params = {
            k: rng.normal(size=getattr(ends, k).shape) for k in ("phi", "bias", "alpha")
        }
    state = rng.normal(size=(3, 5, 4))
    got = fill(ends, **params).close(jnp.asarray(state))
    wanted = oracle.streams_close(state, params, reduce=reduce, coefficient_eps=0.25)
    np.testing.assert_allclose(got, wanted, rtol=1e-12, atol=1e-14)


def test_a_new_head_weighs_all_streams_alike(fill):
    ends = StreamEnds(4, n_streams=5, reduce="head", rngs=nnx.Rngs(0))
    fill(ends, alpha=[0.0])
    state = jnp.asarray(np.random.default_rng(0).normal(size=(5, 3, 4)), jnp.float32)
    np.testing.assert_allclose(
        ends.close(state), state.mean(axis=0), rtol=1e-5, atol=1e-6
    )


def test_sums_over_streams_are_rounded_once():
    # 256 + 1 + 1 is 258 in float32; bfloat16 loses each of the ones.
    ends = StreamEnds(1, n_streams=3, reduce="sum", rngs=nnx.Rngs(0))
    state = jnp.asarray([[[256.0]], [[1.0]], [[1.0]]], jnp.bfloat16)
    assert ends.close(state) == 258
    ones = jnp.ones((3, 1))
    assert weighted(state, ones) == 258
    new = written(state, jnp.ones((3, 3, 1)), ones, [jnp.bfloat16([[2.0]])] * 3)
    np.testing.assert_array_equal(new.astype(jnp.float32), np.full((3, 1, 1), 260))


def test_coefficients_of_half_precision_streams_are_those_of_float32():
    # Squares above 255 are infinite in float16; bfloat16 has eight bits.
    phi = jnp.asarray(np.random.default_rng(0).normal(size=(3, 64, 5)), jnp.float32)
    x = 300 * np.random.default_rng(1).normal(size=(3, 4, 64))
    for dtype in (jnp.bfloat16, jnp.float16):
        half = jnp.asarray(x, dtype)
        wanted = projected(half.astype(jnp.float32), phi, 1e-6)
        got = projected(half, phi, 1e-6)
        assert got.dtype == jnp.float32
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)
