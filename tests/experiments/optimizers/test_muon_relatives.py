"""NorMuon, AdaMuon and the spectral cap: published vectors, and layer by layer."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from blocks.parameters import ParamSpec
from experiments.optimizers.adamuon import divided_by_second_moment
from experiments.optimizers.muon import Muon
from experiments.optimizers.newton_schulz import QUINTIC
from experiments.optimizers.normuon import normalised_neurons
from experiments.optimizers.scale_by_muon import averaged, on_kernels
from experiments.optimizers.spectral_cap import CappedMuon, capped


def gradient(layer: int) -> np.ndarray:
    i, j = np.indices((4, 6))
    return np.sin(1 + layer + 7 * i**2 + 3 * j + (i + layer) * j**2)


def two_steps(rule, transposed: bool) -> list[np.ndarray]:
    """Updates for the gradients of layers 0 and 1, as the reference lays them out."""
    turn = (lambda x: x.T) if transposed else (lambda x: x)
    state = rule.init(jnp.asarray(turn(gradient(0))))
    seen = []
    for t in (0, 1):
        update, state = rule.update(jnp.asarray(turn(gradient(t))), state)
        seen.append(turn(np.asarray(update)))
    return seen


def test_normuon_agrees_with_its_reference(x64):
    # zichongli5/NorMuon normuon.py, float64, before the factor of the shape; torch keeps
    # [out, in], so its rows are the columns of a kernel here.
    rule = optax.chain(
        averaged(0.95, nesterov=True), on_kernels(QUINTIC), normalised_neurons(0.95)
    )
    first, second = two_steps(rule, transposed=True)
    np.testing.assert_allclose(np.linalg.norm(first, axis=1), 0.870644267, rtol=1e-8)
    np.testing.assert_allclose(np.linalg.norm(first), 1.7412885340, rtol=1e-9)
    rows = [1.061837498150195, 0.899795190730101, 1.025322444112431, 0.876229923280691]
    np.testing.assert_allclose(np.linalg.norm(second, axis=1), rows, rtol=1e-9)
    found = [np.linalg.norm(second), second[0, 0], second[3, 5], second.sum()]
    expected = [1.9380906198091097, 0.41329195225792137, 0.1127026277692556]
    np.testing.assert_allclose(found, [*expected, -2.245060195833299], rtol=1e-9)


def test_adamuon_agrees_with_its_reference(x64):
    # Chongjie-Si/AdaMuon adamuon.py, float64.
    rule = optax.chain(
        averaged(0.95, nesterov=True),
        on_kernels(lambda h: QUINTIC(jnp.sign(h))),
        divided_by_second_moment(0.95),
    )
    for update in two_steps(rule, transposed=False):
        np.testing.assert_allclose(np.sqrt(np.mean(update**2)), 0.2, rtol=1e-7)
    np.testing.assert_allclose(update[0, 0], 0.2502549845359875, rtol=1e-7)
    np.testing.assert_allclose(update.sum(), -1.6568755043751957, rtol=1e-7)


# -- the cap ----------------------------------------------------------------------------


def spectral_norms(x) -> np.ndarray:
    return np.linalg.svd(np.asarray(x), compute_uv=False)[..., 0]


def test_a_matrix_beyond_the_cap_ends_at_it_and_keeps_its_shape(x64):
    rng = np.random.default_rng(0)
    w, step = rng.standard_normal((2, 3, 5, 7)), 0.1 * rng.standard_normal((2, 3, 5, 7))
    w[0, 0] *= 0.01  # this one stays below
    rule = capped(2.0)
    update, _ = rule.update(
        jnp.asarray(step), rule.init(jnp.asarray(w)), jnp.asarray(w)
    )
    after, before = w + np.asarray(update), w + step
    norms = spectral_norms(before)
    np.testing.assert_allclose(after[0, 0], before[0, 0], rtol=1e-12)
    expected = before * np.minimum(1, 2.0 / norms)[..., None, None]
    np.testing.assert_allclose(after, expected, rtol=2e-3)


def test_norms_stay_at_the_cap_while_training():
    rng = np.random.default_rng(0)
    specs = {"w": ParamSpec("matrix", (2, 8, 12), 1), "gain": ParamSpec("gain", (8,))}
    params = {
        k: jnp.asarray(0.1 * rng.standard_normal(s.shape)) for k, s in specs.items()
    }

    def norms_after(optimizer, n_steps=60):
        tx = optimizer.transform(specs, lambda count: jnp.float32(1))
        state, now = tx.init(params), params
        update = jax.jit(tx.update)
        seen = []
        for _ in range(n_steps):
            # One direction wins, the rest is noise: a norm that grows and turns.
            grads = {
                k: jnp.asarray(rng.standard_normal(s.shape) + 1)
                for k, s in specs.items()
            }
            updates, state = update(grads, state, now)
            now = optax.apply_updates(now, updates)
            seen.append(spectral_norms(now["w"]))
        return np.array(seen), now

    free, _ = norms_after(Muon(learning_rate=0.1, weight_decay=0.0))
    held, now = norms_after(CappedMuon(learning_rate=0.1, weight_decay=0.0, cap=1.0))
    assert free[-1].min() > 2.0
    assert held.max() < 1.05
    assert held[-1].min() > 0.8
    assert np.all(np.isfinite(now["gain"]))


@pytest.mark.parametrize("optimizer", [Muon(), CappedMuon(cap=1e9)])
def test_a_cap_that_is_never_met_changes_nothing(optimizer):
    specs = {"w": ParamSpec("matrix", (2, 4, 6), 1)}
    params = {"w": jnp.asarray(np.stack([gradient(2), gradient(3)]), jnp.float32)}
    grads = {"w": jnp.asarray(np.stack([gradient(0), gradient(1)]), jnp.float32)}
    tx = optimizer.transform(specs, lambda count: jnp.float32(1))
    update, _ = tx.update(grads, tx.init(params), params)
    plain = Muon().transform(specs, lambda count: jnp.float32(1))
    expected, _ = plain.update(grads, plain.init(params), params)
    np.testing.assert_allclose(update["w"], expected["w"], atol=2e-7)


def test_a_cap_of_zero_is_refused():
    with pytest.raises(ValueError, match="^cap: "):
        CappedMuon.check(cap=0.0)
