"""Sinkhorn-Knopp: vectors, order of columns and rows, range, gradient."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from blocks.oracle import streams as oracle
from blocks.residual.sinkhorn import sinkhorn

# Vectors: float64 NumPy, written from arXiv 2512.24880 equation 9, apart from this code.
LOGITS = np.array(
    [
        [0.0, 1.0, -1.0, 2.0],
        [0.5, -0.5, 1.5, 0.0],
        [-2.0, 1.0, 0.0, 0.5],
        [1.0, 0.0, -1.5, 3.0],
    ]
)
AFTER = {
    1: [
        [0.208045407601, 0.441810879798, 0.069347245419, 0.280796467181],
        [0.258989118142, 0.074433908768, 0.637883784160, 0.028693188930],
        [0.039044318418, 0.612667837785, 0.261404086709, 0.086883757087],
        [0.368804255072, 0.105994964083, 0.027429966772, 0.497770814073],
    ],
    20: [
        [0.254116291126, 0.340987890849, 0.069589441818, 0.335306376207],
        [0.301805159056, 0.054808023918, 0.610697958275, 0.032688858751],
        [0.053789615638, 0.533327347084, 0.295864413579, 0.117018623699],
        [0.390288934127, 0.070876738170, 0.023848186532, 0.514986141171],
    ],
    100: [
        [0.254116291127, 0.340987890812, 0.069589441791, 0.335306376270],
        [0.301805159129, 0.054808023925, 0.610697958181, 0.032688858765],
        [0.053789615646, 0.533327347107, 0.295864413508, 0.117018623739],
        [0.390288934097, 0.070876738156, 0.023848186521, 0.514986141226],
    ],
}
COLUMN_RESIDUALS = {1: 2.349076e-01, 2: 5.360389e-02, 5: 1.108919e-03, 20: 2.032956e-10}
ORIENTED = np.array([[1, 0, -1], [2, -1, 0.5], [0, 1.5, -0.5]])

run = jax.jit(sinkhorn, static_argnames=("iterations", "eps"))


def residuals(matrix):
    """How far rows, and columns, are from a sum of 1 at most."""
    matrix = np.asarray(matrix)
    return [np.abs(matrix.sum(axis=axis) - 1).max() for axis in (1, 0)]


@pytest.mark.parametrize("iterations", AFTER)
def test_vector(float64, iterations):
    matrix = run(jnp.asarray(LOGITS), iterations)
    np.testing.assert_allclose(matrix, AFTER[iterations], rtol=0, atol=1e-11)
    own = oracle.sinkhorn(LOGITS, iterations)
    np.testing.assert_allclose(own, AFTER[iterations], rtol=0, atol=1e-11)


@pytest.mark.parametrize("iterations, expected", COLUMN_RESIDUALS.items())
def test_rows_are_exact_and_columns_converge(float64, iterations, expected):
    row, column = residuals(run(jnp.asarray(LOGITS), iterations))
    assert row < 1e-15
    # A sum of numbers near 1 is rounded at 1e-16.
    np.testing.assert_allclose(column, expected, rtol=1e-6, atol=1e-15)


def test_the_other_order_gives_another_matrix(float64):
    # Rows first: the first row after one iteration, and where the error is left.
    wrong = run(jnp.asarray(LOGITS.T), 1).T
    expected = [0.198972220653, 0.278384394585, 0.039956147214, 0.337346344805]
    np.testing.assert_allclose(wrong[0], expected, atol=1e-11)
    row, column = residuals(wrong)
    np.testing.assert_allclose(row, 3.683542e-01, rtol=1e-6)
    assert column < 1e-15
    assert np.abs(wrong - run(jnp.asarray(LOGITS), 1)).max() > 0.1


def test_convergence_is_that_of_the_second_singular_value(float64):
    limit = np.linalg.svd(run(jnp.asarray(LOGITS), 100), compute_uv=False)
    expected = [1, 0.594000421, 0.472687703, 0.040625993]
    np.testing.assert_allclose(limit, expected, atol=1e-9)
    errors = [residuals(run(jnp.asarray(LOGITS), n))[1] for n in (17, 18)]
    np.testing.assert_allclose(errors[1] / errors[0], limit[1] ** 2, rtol=1e-3)


def test_a_slow_case(float64):
    z = [
        [1, -0.2, 0.1, -0.4],
        [0.3, 1.1, -0.6, 0.2],
        [-0.1, 0.4, 0.9, -0.3],
        [0.8, -0.5, 0.2, 0.7],
    ]
    z = 4 * jnp.asarray(z)
    for iterations, expected in ((1, 2.145e-01), (20, 6.017e-04), (100, 1.4e-13)):
        column = residuals(run(z, iterations))[1]
        np.testing.assert_allclose(
            column, expected, rtol=5e-2 if iterations > 20 else 1e-3
        )


def test_near_identity_logits(float64):
    z = jnp.where(jnp.eye(4, dtype=bool), 0.0, -8.0)
    matrix = np.asarray(run(z, 20))
    np.testing.assert_allclose(np.diag(matrix), 0.9989946239146, rtol=1e-12)
    np.testing.assert_allclose(matrix[0, 1:], 3.351253617989e-04, rtol=1e-12)


def test_orientation_of_a_matrix_that_is_not_symmetric(float64):
    x = np.array([[1, 2], [-1, 0.5], [3, -2]])
    matrix = np.asarray(run(jnp.asarray(ORIENTED), 20))
    expected = [
        [0.980689216547, 0.474969786943],
        [1.888807727826, -0.004588931719],
        [0.130503055589, 0.029619144775],
    ]
    np.testing.assert_allclose(matrix @ x, expected, atol=1e-11)
    assert np.abs(matrix.T @ x - expected).max() > 0.3
    np.testing.assert_allclose(residuals(matrix)[1], 1.424e-11, rtol=1e-3)


def test_two_by_two_has_a_closed_form(float64):
    z = np.array([[0.418548063849, -1.822117072864], [-1.429011765445, 0.636028120751]])
    diagonal = 1 / (1 + np.exp(-(z[0, 0] + z[1, 1] - z[0, 1] - z[1, 0]) / 2))
    matrix = run(jnp.asarray(z), 100)
    np.testing.assert_allclose(matrix[0, 0], diagonal, rtol=1e-12)
    np.testing.assert_allclose(diagonal, 0.8959350326011207, rtol=1e-11)


def test_the_form_of_deepseek(float64):
    # The released code on the transpose: first rows, and both residuals about eps.
    one = run(jnp.asarray(LOGITS), 1, eps=1e-6)
    expected = [0.208045361552, 0.441809495758, 0.069347993230, 0.280796004731]
    np.testing.assert_allclose(one[0], expected, atol=1e-11)
    twenty = run(jnp.asarray(LOGITS), 20, eps=1e-6)
    expected = [0.254115649405, 0.340987952237, 0.069590234423, 0.335305163935]
    np.testing.assert_allclose(twenty[0], expected, atol=1e-11)
    row, column = residuals(twenty)
    np.testing.assert_allclose([row, column], [1e-6, 1.000171e-06], rtol=1e-4)
    plain = run(jnp.asarray(LOGITS), 20)
    np.testing.assert_allclose(np.abs(twenty - plain).max(), 2.2e-6, rtol=0.03)


@pytest.mark.parametrize("n", range(1, 9))
def test_every_size_over_many_tokens(n):
    z = 2 * jax.random.normal(jax.random.key(n), (n, n, 16))
    matrix = np.asarray(run(z, 50))
    assert (matrix >= 0).all()
    assert np.abs(matrix.sum(axis=1) - 1).max() < 1e-6
    assert np.abs(matrix.sum(axis=0) - 1).max() < 1e-2
    for t in (0, 15):
        alone = oracle.sinkhorn(np.asarray(z[..., t], np.float64), 50)
        np.testing.assert_allclose(matrix[..., t], alone, atol=2e-6)


@pytest.mark.parametrize("shift", [0.0, 1e4, -1e4])
def test_rows_and_columns_may_be_shifted(shift):
    # exp(1e4) is infinite, exp(-1e4) is 0; the limit does not depend on either.
    z = jnp.asarray(LOGITS, jnp.float32)
    moved = z.at[1].add(shift).at[:, 2].add(-shift)
    gradient = jax.jacobian(functools.partial(run, iterations=100))
    np.testing.assert_allclose(
        run(moved, 100), AFTER[100], atol=5e-4 if shift else 1e-6
    )
    np.testing.assert_allclose(gradient(moved), gradient(z), atol=2e-3)


@pytest.mark.parametrize("scale", [50.0, 1e3, 1e30])
@pytest.mark.parametrize("eps", [0.0, 1e-6])
def test_logits_of_any_size_stay_finite(scale, eps):
    z = scale * jax.random.normal(jax.random.key(0), (4, 4, 64))
    weights = jax.random.normal(jax.random.key(1), z.shape)
    matrix, pull = jax.vjp(lambda z: run(z, 20, eps=eps), z)
    assert jnp.isfinite(matrix).all()
    assert jnp.isfinite(pull(weights)[0]).all()
    np.testing.assert_allclose(matrix.sum(axis=1), np.ones((4, 64)), atol=1e-5)


@pytest.mark.parametrize("eps", [0.0, 1e-3])
def test_gradient(float64, eps):
    z = jnp.asarray(np.random.default_rng(0).normal(size=(3, 3, 2)))
    check_grads(lambda z: run(z, 7, eps=eps), (z,), order=1, modes=["rev"], rtol=1e-7)
