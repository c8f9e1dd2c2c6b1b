import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from experiments.optimizers.scale_by_soap import scale_by_soap

SETTINGS = {"b1": 0.9, "b2": 0.8, "shampoo_beta": 0.7, "precondition_every": 2}


def gradient(t, m, n):
    i, j = np.arange(m)[:, None], np.arange(n)
    return np.sin(1 + t + 7 * i**2 + 3 * j + (i + t) * j**2)


def start(m, n):
    return 0.5 * np.cos(np.arange(m)[:, None] + 2 * np.arange(n))


def train(tx, params, grads, rate=0.1):
    state = tx.init(params)
    update = jax.jit(tx.update)  # QR and eigh take a second to compile
    moved = []
    for g in grads:
        updates, state = update(g, state, params)
        params = jax.tree.map(lambda p, u: p - rate * u, params, updates)
        moved.append(updates)
    return params, moved, state


# nikhilvyas/SOAP soap.py with lr 0.1, betas (0.9, 0.8), shampoo_beta 0.7, eps 1e-8,
# precondition_frequency 2, no decay, run for 6 steps with torch 1.13 in float64 (its
# casts of the QR input to float32 taken out) on `start` and `gradient`.
PUBLISHED = {
    (5, 5): """
         0.367295046780 -0.100446173954 -0.066886305269  0.313288800649  0.021629695646
         0.611573985883 -0.684195949584  0.215302211204  0.566506195233 -0.679573890228
        -0.084313685711  0.026415398366  0.365037445856 -0.060228739125 -0.460981135520
        -0.468333009905  0.242363496020  0.638451979503 -0.376664069458 -0.058091760817
        -0.827760729107  0.541490034352 -0.239410476043 -0.434828448555  0.613614136147
    """,
    # max_precond_dim 5: the six outputs are left alone.
    (4, 6): """
         0.573921477955 -0.262701524322 -0.110672968093  0.280011997436  0.180698885077
        -0.183138154861
         0.431821992354 -0.749125647618  0.135366581530  0.542861871395 -0.633070067685
         0.063209332036
         0.092324877452 -0.076859652765  0.606759430403 -0.118835489028 -0.489086190687
         0.148358920701
        -0.729412919333  0.260774255507  0.627102157542 -0.507829960099 -0.139920988154
         0.916525152497
    """,
}


@pytest.mark.parametrize("shape", list(PUBLISHED))
def test_six_steps_equal_the_published_code(x64, shape):
    tx = scale_by_soap(**SETTINGS, max_dim=5)
    grads = [{"k": jnp.asarray(gradient(t, *shape))} for t in range(6)]
    params, _, _ = train(tx, {"k": jnp.asarray(start(*shape))}, grads)
    expected = np.array(PUBLISHED[shape].split(), float).reshape(shape)
    np.testing.assert_allclose(params["k"], expected, atol=2e-12)


def test_the_first_update_moves_nothing_and_the_second_does(x64):
    grads = [{"k": jnp.asarray(gradient(t, 4, 6))} for t in range(2)]
    _, moved, _ = train(scale_by_soap(), {"k": jnp.asarray(start(4, 6))}, grads)
    assert not np.any(moved[0]["k"])
    assert np.all(moved[1]["k"] != 0)


def test_second_moments_change_at_every_step_also_without_a_refresh(x64):
    # haydn-jones/SOAP_JAX drops them on all steps but the refreshes.
    tx = scale_by_soap(precondition_every=10)
    params = {"k": jnp.asarray(start(3, 4))}
    state = tx.init(params)
    update = jax.jit(tx.update)
    seen = []
    for t in range(5):
        _, state = update({"k": jnp.asarray(gradient(t, 3, 4))}, state, params)
        seen.append(float(jnp.sum(state.kernels["k"].nu)))
    assert seen[0] == 0
    assert len(set(seen)) == 5


def test_without_a_side_to_precondition_it_is_adam_one_step_late(x64):
    grads = [{"k": jnp.asarray(gradient(t, 3, 4))} for t in range(4)]
    params = {"k": jnp.asarray(start(3, 4))}
    _, moved, _ = train(scale_by_soap(0.9, 0.95, eps=0.0, max_dim=2), params, grads)
    _, adam, _ = train(optax.scale_by_adam(0.9, 0.95, 0.0), params, grads[1:])
    for ours, theirs in zip(moved[1:], adam, strict=True):
        np.testing.assert_allclose(ours["k"], theirs["k"], rtol=1e-12)


def test_rotated_gradients_give_rotated_updates(x64):
    rng = np.random.default_rng(0)
    left, right = (np.linalg.qr(rng.standard_normal((5, 5)))[0] for _ in range(2))
    grads = [gradient(t, 5, 5) for t in range(5)]
    params = {"k": jnp.zeros((5, 5))}
    as_trees = lambda gs: [{"k": jnp.asarray(g)} for g in gs]  # noqa: E731
    tx = scale_by_soap(**SETTINGS)
    _, plain, _ = train(tx, params, as_trees(grads))
    _, turned, _ = train(tx, params, as_trees(left @ g @ right for g in grads))
    np.testing.assert_allclose(
        turned[-1]["k"], left @ plain[-1]["k"] @ right, atol=1e-10
    )


def test_copies_do_not_mix(x64):
    # Layers and experts, with gradients of very different size.
    size = np.array([1.0, 1e-3, 1e3, 1.0]).reshape(2, 2, 1, 1)
    grads = [
        size
        * np.stack([gradient(4 * t + c, 4, 4) for c in range(4)]).reshape(2, 2, 4, 4)
        for t in range(5)
    ]
    tx = scale_by_soap(**SETTINGS)
    _, moved, _ = train(
        tx, {"k": jnp.zeros((2, 2, 4, 4))}, [{"k": jnp.asarray(g)} for g in grads]
    )
    # Four kernels at once instead of one kernel of four.
    alone = [{str(at): jnp.asarray(g[at]) for at in np.ndindex(2, 2)} for g in grads]
    _, single, _ = train(tx, jax.tree.map(jnp.zeros_like, alone[0]), alone)
    for at in np.ndindex(2, 2):
        np.testing.assert_allclose(moved[-1]["k"][at], single[-1][str(at)], rtol=1e-9)


def test_bases_stay_orthogonal_in_float32():
    grads = [{"k": jnp.asarray(gradient(t, 6, 9), jnp.float32)} for t in range(7)]
    params = {"k": jnp.zeros((6, 9), jnp.float32)}
    _, _, state = train(scale_by_soap(**SETTINGS), params, grads)
    for basis in state.kernels["k"].bases:
        identity = np.asarray(basis.mT @ basis, np.float64)
        np.testing.assert_allclose(identity, np.eye(len(identity)), atol=5e-6)


def test_a_vector_is_refused():
    with pytest.raises(ValueError, match=r"d_in, d_out"):
        scale_by_soap().init({"gain": jnp.ones(3)})


def test_rounding_does_not_choose_the_basis_of_what_no_gradient_has_shown(x64):
    # Two gradients of rank 4 leave one of nine directions open, the first leaves five.
    rng = np.random.default_rng(0)
    grads = [gradient(t, 4, 9) for t in range(4)]
    nudged = [g * (1 + 1e-15 * rng.standard_normal(g.shape)) for g in grads]
    tx = scale_by_soap(precondition_every=1)
    params = {"k": jnp.zeros((4, 9))}
    _, plain, _ = train(tx, params, [{"k": jnp.asarray(g)} for g in grads])
    _, other, _ = train(tx, params, [{"k": jnp.asarray(g)} for g in nudged])
    for a, b in zip(plain, other, strict=True):
        np.testing.assert_allclose(a["k"], b["k"], atol=1e-10)


def test_the_leading_columns_of_a_basis_span_every_gradient_so_far(x64):
    grads = [gradient(t, 4, 9) for t in range(2)]
    _, _, state = train(
        scale_by_soap(precondition_every=1),
        {"k": jnp.zeros((4, 9))},
        [{"k": jnp.asarray(g)} for g in grads],
    )
    leading = np.asarray(state.kernels["k"].bases[1][:, :8])
    for g in grads:
        np.testing.assert_allclose(g @ leading @ leading.T, g, atol=1e-10)
