"""Hyper-connections and frac-connections: vectors, parameters, what they start as."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from blocks.norms.layernorm import LayerNorm
from blocks.norms.rmsnorm import RMSNorm
from blocks.oracle import streams as oracle
from blocks.residual.frac_connections import FracConnections
from blocks.residual.hyper_connections import HyperConnections
from blocks.site import Site


def make_joint(scheme, d_model, number=0):
    return scheme.make_joint(d_model, site=Site("ffn", number, 8), rngs=nnx.Rngs(0))


# -- a vector: float64 NumPy, written from the paper's equations, apart from this code ---

X = np.array([[1, -2, 0.5], [0.25, 1.5, -1]])
W = np.array([[0.5, -1, 0], [0, 2, 1], [1, 0, -0.5]])
DYNAMIC = np.array(  # columns W_m, W_r (two), W_beta
    [[0.2, 0.1, 0, 0.1], [0.1, -0.1, 0.2, -0.2], [-0.1, 0.3, -0.2, 0.3]]
)


def test_vector_of_a_dynamic_layer(float64, fill, step):
    norm = functools.partial(RMSNorm, gain="none", eps=1e-24)
    joint = make_joint(HyperConnections(n_streams=2, norm=norm), 3)
    fill(joint, dynamic__weight=DYNAMIC, dynamic__scale=[0.5, 0.5])
    u, kept, _ = step(joint, X[:, None], np.zeros((1, 3)))
    close = functools.partial(np.testing.assert_allclose, rtol=0, atol=1e-11)
    close(kept["post"][:, 0], [1.227645138787, 0.750788533338])
    close(kept["pre"][:, 0], [0.981110770364, 0.138993228545])
    a_r = [[1.163813696471, -0.180469212086], [-0.191877741276, 1.221449277264]]
    close(kept["mixing"][..., 0].T, a_r)
    close(u[0], [1.015859077501, -1.753731697910, 0.351562156637])
    branch = u / np.sqrt(np.mean(u**2)) @ W
    _, _, new = step(joint, X[:, None], branch)
    first = [2.004321769160, -7.291312661393, -1.220799782035]
    second = [0.668257556830, -0.666499497103, -2.531507941270]
    close(new[:, 0], [first, second])


def test_the_mixing_matrix_is_taken_transposed(float64, fill, step):
    joint = make_joint(HyperConnections(n_streams=3, is_dynamic=False), 2)
    a_r = np.arange(9.0).reshape(3, 3)
    fill(joint, mixing=a_r)
    x = np.array([[1.0, 2.0], [-1.0, 0.5], [3.0, -2.0]])
    _, kept, new = step(joint, x[:, None], np.zeros((1, 2)))
    np.testing.assert_allclose(new[:, 0], a_r.T @ x)
    assert np.abs(a_r.T @ x - a_r @ x).max() > 1
    np.testing.assert_array_equal(jax.jit(joint.look)(kept)["mixing"], a_r.T)


# -- parameters ------------------------------------------------------------------------


def n_parameters(make):
    return sum(leaf.size for leaf in jax.tree.leaves(nnx.state(nnx.eval_shape(make))))


# Of a joint: static n (n + 2), dynamic and d (n + 2) + 2 more. OLMo-1B has 32 of them:
# 768 and 394 048 in the paper's table.
@pytest.mark.parametrize(
    "is_dynamic, width, expected",
    [
        (False, 2048, 768 / 32),
        (True, 2048, 394_048 / 32),
        (True, 512, 3098),
        (True, 4096, 24_602),
    ],
)
def test_number_of_parameters(is_dynamic, width, expected):
    scheme = HyperConnections(n_streams=4, is_dynamic=is_dynamic)
    assert n_parameters(lambda: make_joint(scheme, width)) == expected


def test_number_of_parameters_of_fractions():
    # m (2 m + 1) of a joint; OLMoE, 16 blocks, m = 4: 1152 in all.
    scheme = FracConnections(n_streams=4, is_dynamic=False)
    assert 32 * n_parameters(lambda: make_joint(scheme, 64)) == 1152


@pytest.mark.parametrize("number", [0, 1, 4, 7])
def test_sub_layers_start_by_reading_streams_in_turn(number):
    def read_weights(number):
        joint = make_joint(HyperConnections(n_streams=3), 4, number)
        return joint.read_weights[...]

    wanted = np.eye(3)[number % 3]
    np.testing.assert_array_equal(read_weights(number), wanted)
    traced = jax.jit(read_weights)(jnp.int32(number))  # as in a stack under vmap
    np.testing.assert_array_equal(traced, wanted)


@pytest.mark.parametrize("power, expected", [(0.0, 1.0), (0.5, 2.0), (-0.5, 0.5)])
def test_output_maps_may_start_larger_or_smaller(power, expected):
    scheme = HyperConnections(n_streams=4, output_power=power)
    assert scheme.init_factor("output", Site("ffn", 0, 1)) == expected
    assert scheme.init_factor("hidden", Site("ffn", 0, 1)) == 1.0


# -- options ---------------------------------------------------------------------------


@pytest.mark.parametrize("make", [HyperConnections, FracConnections])
def test_without_tanh_what_streams_say_is_not_limited(float64, fill, step, make):
    joint = make_joint(make(n_streams=2, has_tanh=False), 4)
    rng = np.random.default_rng(0)
    weight = 10 * rng.normal(size=joint.dynamic.weight.shape)
    fill(joint, dynamic__weight=weight)
    state, branch = rng.normal(size=(2, 3, 4)), rng.normal(size=(3, 4))
    if make is FracConnections:
        state = state[..., :2]
    params = {
        "/".join(p): np.asarray(v[...]) for p, v in nnx.to_flat_state(nnx.state(joint))
    }
    name = "hyper_connections" if make is HyperConnections else "frac_connections"
    read, write = (getattr(oracle, f"{name}_{k}") for k in ("read", "write"))
    wanted, kept = read(state, params, 0, has_tanh=False)
    u, _, new = step(joint, state, branch)
    np.testing.assert_allclose(u, wanted, rtol=1e-12, atol=1e-13)
    wanted = write(state, branch, kept, params, 0)
    np.testing.assert_allclose(new, wanted, rtol=1e-12, atol=1e-13)
    limited, _ = read(state, params, 0, has_tanh=True)
    assert np.abs(limited - u).max() > 1e-3


def test_streams_speak_through_the_norm_that_is_given(float64, fill, step):
    joint = make_joint(HyperConnections(n_streams=2, norm=LayerNorm), 4)
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(4, 4))
    fill(joint, dynamic__weight=weight, dynamic__norm__gain=rng.normal(size=4))
    state = rng.normal(size=(2, 3, 4))
    _, kept, _ = step(joint, state, np.zeros((3, 4)))
    normed = joint.dynamic.norm(jnp.asarray(state))
    said = 0.01 * np.tanh(np.einsum("ntd,d->nt", normed, weight[:, -1]))
    np.testing.assert_allclose(kept["post"], 1 + said, rtol=1e-7)


def test_fractions_must_divide_the_width():
    scheme = FracConnections(n_streams=3)
    for make in (
        lambda: make_joint(scheme, 8),
        lambda: scheme.make_ends(8, n_layers=1, norm=RMSNorm, rngs=nnx.Rngs(0)),
    ):
        with pytest.raises(ValueError, match="n_streams must divide d_model=8, got 3"):
            make()


def test_fractions_are_neighbouring_features():
    ends = FracConnections(n_streams=2).make_ends(
        6, n_layers=1, norm=RMSNorm, rngs=nnx.Rngs(0)
    )
    x = jnp.arange(12.0).reshape(2, 6)
    state = ends.open(x)
    np.testing.assert_array_equal(state[1], [[3, 4, 5], [9, 10, 11]])
    np.testing.assert_array_equal(ends.close(state), x)


@pytest.mark.parametrize("make", [HyperConnections, FracConnections])
@pytest.mark.parametrize(
    "keywords, message",
    [
        ({"n_streams": 0}, "n_streams must be 1 to 8, got 0"),
        ({"n_streams": 9}, "n_streams must be 1 to 8, got 9"),
        ({"scale_init": np.nan}, "scale_init must be finite, got nan"),
    ],
)
def test_what_has_no_meaning_is_refused(make, keywords, message):
    with pytest.raises(ValueError, match=message):
        make.check(**keywords)
