"""Other ways to a mixing matrix: permutations, rotations, squared rotations, none."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from blocks.residual.go_mhc import GoMHC
from blocks.residual.identity_hc import IdentityHC
from blocks.residual.mhc_lite import MHCLite, permutations
from blocks.residual.orthogonal import Orthogonal, cayley, skew
from blocks.site import Site


def make_joint(scheme, d_model=5, number=0):
    return scheme.make_joint(d_model, site=Site("ffn", number, 8), rngs=nnx.Rngs(0))


def mixing_of(scheme, raw):
    joint = make_joint(scheme)
    return np.asarray(jax.jit(joint.mixing)(jnp.asarray(raw)))


def raw_of(scheme, n_tokens=6, scale=1.0):
    n_logits = len(scheme.res_init())
    return scale * np.random.default_rng(0).normal(size=(n_logits, n_tokens))


def spectral(mixing):
    return np.linalg.svd(mixing.transpose(2, 0, 1), compute_uv=False)


# -- doubly stochastic without iterations ----------------------------------------------


@pytest.mark.parametrize("scale", [1.0, 30.0])
@pytest.mark.parametrize("n", [2, 3, 4])
@pytest.mark.parametrize("make", [MHCLite, GoMHC])
def test_rows_and_columns_sum_to_one(float64, make, n, scale):
    scheme = make(n_streams=n)
    mixing = mixing_of(scheme, raw_of(scheme, scale=scale))
    assert mixing.shape == (n, n, 6)
    assert (mixing >= 0).all()
    np.testing.assert_allclose(mixing.sum(axis=0), np.ones((n, 6)), rtol=1e-12)
    np.testing.assert_allclose(mixing.sum(axis=1), np.ones((n, 6)), rtol=1e-12)
    assert np.abs(mixing - mixing.transpose(1, 0, 2)).max() > 1e-3 or n == 2


def test_permutations_are_all_of_them_and_the_identity_first():
    matrices = permutations(4)
    assert matrices.shape == (24, 4, 4)
    assert len({m.tobytes() for m in matrices}) == 24
    np.testing.assert_array_equal(matrices[0], np.eye(4))
    np.testing.assert_array_equal(matrices.sum(axis=1), np.ones((24, 4)))
    np.testing.assert_array_equal(matrices.sum(axis=2), np.ones((24, 4)))


def test_one_large_logit_is_one_permutation(float64):
    # The second of three in lexicographic order, (0, 2, 1); the fourth, (1, 2, 0):
    # stream 0 takes from 1, 1 from 2, 2 from 0.
    for k, expected in ((1, [0, 2, 1]), (3, [1, 2, 0])):
        raw = np.full((6, 1), -800.0)
        raw[k] = 0
        mixing = mixing_of(MHCLite(n_streams=3), raw)[..., 0]
        np.testing.assert_array_equal(mixing, np.eye(3)[expected])


def test_number_of_parameters_of_mhc_lite():
    # n C (2 n + n!) + 2 n + n! + 3
    joint = nnx.eval_shape(lambda: make_joint(MHCLite(n_streams=4), 64))
    sizes = [leaf.size for leaf in jax.tree.leaves(nnx.state(joint))]
    assert sum(sizes) == 4 * 64 * (8 + 24) + 8 + 24 + 3


def test_mhc_lite_of_more_than_six_streams_is_refused():
    with pytest.raises(ValueError, match="n_streams must be at most 6 .* got 7"):
        MHCLite.check(n_streams=7)


# go-mHC, 3 streams, s = 2: float64 NumPy with the seed written here.
EXPECTED = [
    [0.589675734996, 0.303258898546, 0.107065366459],
    [0.267812647616, 0.407704571416, 0.324482780968],
    [0.142511617388, 0.289036530039, 0.568451852573],
]


def test_vector_of_go_mhc(float64):
    a = np.random.default_rng(0).standard_normal((6, 6))
    a = a - a.T
    raw = a[np.triu_indices(6, 1)][:, None]
    mixing = mixing_of(GoMHC(n_streams=3, block_size=2), raw)
    np.testing.assert_allclose(mixing[..., 0], EXPECTED, rtol=0, atol=1e-11)


def test_go_mhc_that_would_never_leave_the_identity_is_refused():
    with pytest.raises(ValueError, match="phi_std must be above 0, got 0.0"):
        GoMHC.check(phi_std=0.0, start="onehot")
    with pytest.raises(ValueError, match="block_size must be 1 to 4, got 5"):
        GoMHC.check(block_size=5)


# -- rotations -------------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 3, 8])
@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_rotations_keep_the_length_of_every_vector(float64, n, scale):
    scheme = Orthogonal(n_streams=n)
    mixing = mixing_of(scheme, raw_of(scheme, scale=scale))
    np.testing.assert_allclose(spectral(mixing), np.ones((6, n)), rtol=1e-9)
    determinant = np.linalg.det(mixing.transpose(2, 0, 1))
    np.testing.assert_allclose(determinant, np.ones(6), rtol=1e-9)


def test_a_rotation_of_two_streams_by_hand(float64):
    # tan(angle / 2) = a:  (I + A)^-1 (I - A) = [[c, -s], [s, c]], A = [[0, a], [-a, 0]]
    a = np.tan(0.6 / 2)
    mixing = mixing_of(Orthogonal(n_streams=2), [[a]])[..., 0]
    c, s = np.cos(0.6), np.sin(0.6)
    np.testing.assert_allclose(mixing, [[c, -s], [s, c]], rtol=1e-12)


def test_cayley_equals_solving(float64):
    raw = np.random.default_rng(1).normal(size=(10, 4))
    a = np.asarray(skew(jnp.asarray(raw), 5))
    np.testing.assert_array_equal(a, -a.transpose(1, 0, 2))
    q = np.asarray(jax.jit(cayley)(jnp.asarray(a)))
    for t in range(4):
        wanted = np.linalg.solve(np.eye(5) + a[..., t], np.eye(5) - a[..., t])
        np.testing.assert_allclose(q[..., t], wanted, rtol=1e-12, atol=1e-14)


def test_rotations_are_exact_in_float32():
    # Entries of 30: elimination without exchange of rows would miss by 1e-4.
    scheme = Orthogonal(n_streams=8)
    mixing = mixing_of(scheme, np.float32(raw_of(scheme, 256, scale=30.0)))
    assert mixing.dtype == np.float32
    np.testing.assert_allclose(spectral(mixing), np.ones((256, 8)), atol=1e-5)


# -- where they start ------------------------------------------------------------------


@pytest.mark.parametrize("make", [Orthogonal, GoMHC, IdentityHC])
def test_streams_are_not_mixed_at_first(step, make):
    joint = make_joint(make(n_streams=3, alpha_init=0.0))
    state = np.float32(np.random.default_rng(0).normal(size=(3, 4, 5)))
    _, kept, new = step(joint, state, np.zeros((4, 5), np.float32))
    np.testing.assert_array_equal(kept["mixing"][..., 0], np.eye(3))
    np.testing.assert_allclose(new, state, rtol=1e-6)


def test_identity_adds_its_epsilon_to_both_weights(step):
    joint = make_joint(IdentityHC(n_streams=4, alpha_init=0.0, coefficient_eps=0.5))
    _, kept, _ = step(
        joint, np.ones((4, 1, 5), np.float32), np.ones((1, 5), np.float32)
    )
    np.testing.assert_allclose(kept["pre"], np.full((4, 1), 0.75), rtol=1e-6)
    np.testing.assert_allclose(kept["post"], np.full((4, 1), 1.5), rtol=1e-6)


def test_identity_has_a_third_of_the_parameters():
    # 2 n * n C + 2 n + 2
    joint = nnx.eval_shape(lambda: make_joint(IdentityHC(n_streams=4), 64))
    sizes = [leaf.size for leaf in jax.tree.leaves(nnx.state(joint))]
    assert sum(sizes) == 8 * 4 * 64 + 8 + 2
