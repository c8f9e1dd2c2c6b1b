import jax.numpy as jnp
import numpy as np
import pytest

from blocks.parameters import ParamSpec
from experiments.optimizers.adamw import AdamW

SPECS = {
    "kernel": ParamSpec("matrix", (2, 3)),
    "head": ParamSpec("head", (3, 2)),
    "gain": ParamSpec("gain", (3,)),
}


def one(count):
    del count
    return jnp.float32(1)


def test_three_updates_of_a_scalar_agree_with_published_numbers(x64):
    # optax 0.2.8 adamw(1.0, b1=0.9, b2=0.999, eps=1e-8, weight_decay=0), float64.
    tx = AdamW(
        learning_rate=1.0, b1=0.9, b2=0.999, eps=1e-8, weight_decay=0.0, clip_norm=None
    ).transform({"p": ParamSpec("bias", (1,))}, one)
    params = {"p": jnp.zeros(1)}
    state = tx.init(params)
    got = []
    for grad in (1.0, -1.0, 0.5):
        updates, state = tx.update({"p": jnp.array([grad])}, state, params)
        got.append(updates["p"][0])
    np.testing.assert_allclose(
        got, [-0.99999999, 0.0526315784, -0.1747255322], atol=5e-11
    )


def test_five_steps_equal_a_loop_in_numpy(x64):
    rng = np.random.default_rng(0)
    p = {path: rng.standard_normal(spec.shape) for path, spec in SPECS.items()}
    m = {path: 0 * x for path, x in p.items()}
    v = {path: 0 * x for path, x in p.items()}
    rate, b1, b2, eps, decay, limit = 0.03, 0.8, 0.97, 1e-6, 0.2, 1.5
    optimizer = AdamW(
        learning_rate=rate, b1=b1, b2=b2, eps=eps, weight_decay=decay, clip_norm=limit
    )
    tx = optimizer.transform(SPECS, one)
    ours = {path: jnp.asarray(x) for path, x in p.items()}
    state = tx.init(ours)
    for t in range(1, 6):
        grads = {path: rng.standard_normal(x.shape) for path, x in p.items()}
        updates, state = tx.update(
            {path: jnp.asarray(g) for path, g in grads.items()}, state, ours
        )
        ours = {path: x + updates[path] for path, x in ours.items()}
        norm = np.sqrt(sum((g**2).sum() for g in grads.values()))
        for path, grad in grads.items():
            g = grad * min(1, limit / norm)
            m[path] = b1 * m[path] + (1 - b1) * g
            v[path] = b2 * v[path] + (1 - b2) * g**2
            u = m[path] / (1 - b1**t) / (np.sqrt(v[path] / (1 - b2**t)) + eps)
            lam = 0 if path == "gain" else decay
            p[path] = p[path] - rate * (u + lam * p[path])
    for path in p:
        np.testing.assert_allclose(ours[path], p[path], rtol=1e-12)


def test_matrices_and_head_decay_and_nothing_else():
    roles = ("matrix", "head", "embedding", "position", "gain", "bias", "alpha")
    roles += ("shift", "scale", "mixing", "router", "sink")
    groups = AdamW().groups({role: ParamSpec(role, (2, 2)) for role in roles})
    assert {role for role in roles if groups[role] == "decay"} == {"matrix", "head"}
    assert set(groups.values()) == {"decay", "no_decay"}


def test_an_eps_that_float32_cannot_hold_is_refused():
    AdamW.check(eps=1e-25)
    with pytest.raises(ValueError, match=r"^eps: .*1e-40"):
        AdamW.check(eps=1e-40)
