import jax.numpy as jnp
import numpy as np
import optax
import pytest

from blocks.parameters import ROLES, ParamSpec
from experiments.optimizers.adamw import AdamW
from experiments.optimizers.muon import Muon
from experiments.optimizers.newton_schulz import Polynomials


def one(count):
    del count
    return jnp.float32(1)


def gradient(layer: int) -> np.ndarray:
    i, j = np.indices((4, 6))
    return np.sin(1 + layer + 7 * i**2 + 3 * j + (i + layer) * j**2)


# Three steps of KellerJordan/Muon muon.py, float64, eps 1e-8 instead of its 1e-7, from
# 0.5 cos(i + 2 j) [fan_in, fan_out]; rate 0.02, decay 0.1, momentum 0.95.
# fmt: off
AFTER_THREE_STEPS = [
    [0.499461424915438, -0.212888597964489, -0.290900269889538,
     0.46194402598406, -0.068599684109428, -0.388438512927158],
    [0.285306079093146, -0.498424092008201, 0.135324262943126,
     0.382729730590618, -0.460029492288151, 0.026608561536676],
    [-0.181175459077198, -0.322149703609166, 0.490594752592116,
     -0.074216182918645, -0.426386262675396, 0.384862164465624],
    [-0.510342603302995, 0.143049100416836, 0.402310759629073,
     -0.450950652591048, -0.009743263545129, 0.481434663605578],
]
# fmt: on


def three_steps(ns_eps):
    i, j = np.indices((4, 6))
    params = {"w": jnp.asarray(0.5 * np.cos(i + 2 * j))}
    tx = Muon(
        learning_rate=0.02,
        weight_decay=0.1,
        iteration=Polynomials(eps=ns_eps),
        clip_norm=None,
    ).transform({"w": ParamSpec("matrix", (4, 6))}, one)
    state = tx.init(params)
    for t in (1, 2, 3):
        updates, state = tx.update({"w": jnp.asarray(gradient(t))}, state, params)
        params = optax.apply_updates(params, updates)
    return np.asarray(params["w"])


def test_three_steps_agree_with_the_reference_implementation(x64):
    np.testing.assert_allclose(three_steps(1e-8), AFTER_THREE_STEPS, atol=1e-14)


def test_three_steps_agree_at_the_eps_of_the_reference(x64):
    after = three_steps(1e-7)
    np.testing.assert_allclose(
        [after[0, 0], after[3, 5]],
        [0.49946142064298776, 0.4814346561363001],
        atol=1e-15,
    )


def test_matrices_go_to_muon_and_every_other_role_to_adam():
    groups = Muon().groups({role: ParamSpec(role, (3, 2, 2), 1) for role in ROLES})
    assert {role for role, group in groups.items() if group == "muon"} == {"matrix"}
    assert set(groups.values()) == {"muon", "adam"}


def test_stacked_gains_and_alphas_are_not_orthogonalised(x64):
    # A rank test would take [layers, d] for a kernel. Adam's first step is a sign.
    specs = {
        "gain": ParamSpec("gain", (3, 4), 1),
        "alpha": ParamSpec("alpha", (3, 1), 1),
        "embedding": ParamSpec("embedding", (5, 4)),
    }
    params = {path: jnp.ones(spec.shape) for path, spec in specs.items()}
    grads = {
        path: jnp.asarray(np.cos(np.arange(p.size)).reshape(p.shape)) * 1e-3
        for path, p in params.items()
    }
    tx = Muon(learning_rate=7.0, adam_learning_rate=0.5).transform(specs, one)
    updates, _ = tx.update(grads, tx.init(params), params)
    for path, grad in grads.items():
        expected = -0.5 * grad / (np.abs(grad) + 1e-10)
        np.testing.assert_allclose(updates[path], expected, rtol=1e-12)


def test_the_other_group_is_adam_without_decay_at_its_own_rate(x64):
    rng = np.random.default_rng(0)
    specs = {
        "kernel": ParamSpec("matrix", (2, 3, 3), 1),
        "head": ParamSpec("head", (3, 5)),
        "gain": ParamSpec("gain", (3,)),
    }
    params = {k: jnp.asarray(rng.standard_normal(s.shape)) for k, s in specs.items()}
    muon = Muon(
        learning_rate=9.0,
        adam_learning_rate=0.01,
        adam_b1=0.8,
        adam_b2=0.9,
        adam_eps=1e-5,
    ).transform(specs, one)
    adam = AdamW(
        learning_rate=0.01, b1=0.8, b2=0.9, eps=1e-5, weight_decay=0.0
    ).transform(specs, one)
    a, b = muon.init(params), adam.init(params)
    for _ in range(3):
        grads = {k: jnp.asarray(rng.standard_normal(s.shape)) for k, s in specs.items()}
        ours, a = muon.update(grads, a, params)
        theirs, b = adam.update(grads, b, params)
        np.testing.assert_allclose(ours["head"], theirs["head"], rtol=1e-14)
        np.testing.assert_allclose(ours["gain"], theirs["gain"], rtol=1e-14)
        assert not np.allclose(ours["kernel"], theirs["kernel"])


def test_experts_and_layers_may_both_be_stacked(x64):
    shape = (2, 3, 4, 6)
    grads = np.random.default_rng(0).standard_normal(shape)
    params = {"experts": jnp.zeros(shape)}
    tx = Muon(learning_rate=1.0, weight_decay=0.0).transform(
        {"experts": ParamSpec("matrix", shape, 2)}, one
    )
    updates, _ = tx.update({"experts": jnp.asarray(grads)}, tx.init(params), params)
    values = np.linalg.svd(updates["experts"], compute_uv=False) / np.sqrt(6 / 4)
    assert values.shape == (2, 3, 4)
    assert values.min() > 0.5
    assert values.max() < 1.25


@pytest.mark.parametrize("n_stacked", [0, 2])
def test_a_kernel_that_is_not_two_axes_per_copy_is_refused(n_stacked):
    with pytest.raises(ValueError, match="attn/q"):
        Muon().groups({"attn/q": ParamSpec("matrix", (4, 2, 8), n_stacked)})


@pytest.mark.parametrize(
    "keywords", [{"scale": "moonlight"}, {"momentum": 1.0}, {"adam_b1": 1.0}]
)
def test_other_keywords_are_refused_by_name(keywords):
    with pytest.raises(ValueError, match=f"^{next(iter(keywords))}: "):
        Muon.check(**keywords)
