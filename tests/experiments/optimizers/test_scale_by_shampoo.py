import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.optimizers.newton_schulz import Polynomials
from experiments.optimizers.scale_by_shampoo import inverse_root, scale_by_shampoo


def gradient(t, m=4, n=6):
    i, j = np.arange(m)[:, None], np.arange(n)
    return np.sin(1 + t + 7 * i**2 + 3 * j + (i + t) * j**2)


def train(tx, grads):
    params = {"k": jnp.zeros_like(grads[0])}
    state = tx.init(params)
    update = jax.jit(tx.update)
    moved = []
    for g in grads:
        updates, state = update({"k": jnp.asarray(g)}, state, params)
        moved.append(np.asarray(updates["k"]))
    return moved


def in_numpy(grads, b1, b2, every):
    """arXiv 1802.09568 algorithm 1 with averages corrected for their start."""
    m, left, right, roots, moved = 0, 0, 0, None, []
    for t, g in enumerate(grads, 1):
        m = b1 * m + (1 - b1) * g
        left = b2 * left + (1 - b2) * g @ g.T
        right = b2 * right + (1 - b2) * g.T @ g
        if (t - 1) % every == 0:
            roots = []
            for gram in (left, right):
                values, q = np.linalg.eigh(gram / (1 - b2**t))
                roots.append(q @ np.diag(values**-0.25) @ q.T)
        moved.append(roots[0] @ (m / (1 - b1**t)) @ roots[1])
    return moved


@pytest.mark.parametrize("every", [1, 3])
def test_five_steps_equal_the_formula_in_numpy(x64, every):
    grads = [gradient(t, 5, 5) for t in range(5)]
    tx = scale_by_shampoo(0.9, 0.8, cutoff=1e-12, precondition_every=every)
    expected = in_numpy(grads, 0.9, 0.8, every)
    np.testing.assert_allclose(train(tx, grads), expected, rtol=1e-8, atol=1e-10)


def test_the_first_update_is_the_orthogonal_polar_factor(x64):
    first = train(scale_by_shampoo(), [gradient(0)])[0]
    u, _, v = np.linalg.svd(gradient(0), full_matrices=False)
    np.testing.assert_allclose(first, u @ v, atol=1e-11)
    # Five quintic Newton-Schulz steps (optax 0.2.8) leave this distance to it.
    muon = Polynomials(eps=1e-8)(jnp.asarray(gradient(0)))
    np.testing.assert_allclose(np.linalg.norm(muon - first), 0.41650960, atol=1e-8)


def test_without_averages_every_update_is_orthogonal(x64):
    tx = scale_by_shampoo(0.0, 0.0, precondition_every=1)
    for update in train(tx, [gradient(t) for t in range(3)]):
        np.testing.assert_allclose(update @ update.T, np.eye(4), atol=1e-10)


def test_one_side_alone_takes_the_inverse_square_root(x64):
    first = train(scale_by_shampoo(max_dim=5), [gradient(0)])[0]
    np.testing.assert_allclose(first @ first.T, np.eye(4), atol=1e-10)
    tall = train(scale_by_shampoo(max_dim=5), [gradient(0).T])[0]
    np.testing.assert_allclose(tall, first.T, atol=1e-10)


def test_scaled_gradients_give_the_same_updates(x64):
    grads = [gradient(t) for t in range(4)]
    tx = scale_by_shampoo(precondition_every=2)
    plain, large = train(tx, grads), train(tx, [1e3 * g for g in grads])
    np.testing.assert_allclose(large, plain, rtol=1e-8, atol=1e-10)


def test_stale_roots_do_not_enlarge_directions_they_have_not_seen(x64):
    # Rank 4 of 6 at the first step, then new gradients in the two missing directions.
    for update in train(
        scale_by_shampoo(precondition_every=10), [gradient(t) for t in range(5)]
    ):
        assert np.linalg.norm(update, 2) < 2


def test_copies_do_not_mix(x64):
    grads = [
        np.stack([gradient(3 * t, 4, 4), 1e-3 * gradient(3 * t + 1, 4, 4)])
        for t in range(4)
    ]
    tx = scale_by_shampoo(precondition_every=2)
    together = train(tx, grads)
    for layer in range(2):
        alone = train(tx, [g[layer] for g in grads])
        np.testing.assert_allclose(together[-1][layer], alone[-1], rtol=1e-8)


def test_inverse_root_of_a_singular_matrix_is_that_of_its_range_in_float32():
    direction = np.array([1.0, 2.0, 3.0]) / np.sqrt(14)
    gram = jnp.asarray(16 * np.outer(direction, direction), jnp.float32)
    expected = 0.5 * np.outer(direction, direction)
    np.testing.assert_allclose(inverse_root(gram, 4, 1e-6), expected, atol=1e-6)
    assert not np.any(inverse_root(0 * gram, 4, 1e-6))


def test_a_kernel_with_two_long_sides_is_refused():
    with pytest.raises(ValueError, match=r"^max_dim: .*\(4, 6\)"):
        scale_by_shampoo(max_dim=3).init({"k": jnp.ones((4, 6))})
