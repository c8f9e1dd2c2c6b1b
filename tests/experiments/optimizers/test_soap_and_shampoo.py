"""SOAP and Shampoo as optimizers: who gets the rule, and the corners of a training."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from blocks.parameters import ParamSpec
from experiments.optimizers.scale_by_shampoo import scale_by_shampoo
from experiments.optimizers.scale_by_soap import scale_by_soap
from experiments.optimizers.shampoo import Shampoo
from experiments.optimizers.soap import SOAP

SPECS = {
    "experts": ParamSpec("matrix", (2, 2, 4, 3), 2),
    "head": ParamSpec("head", (3, 5)),
    "gain": ParamSpec("gain", (2, 3), 1),
}


def one(count):
    del count
    return jnp.float32(1)


def draws(seed):
    rng = np.random.default_rng(seed)
    return {
        path: jnp.asarray(rng.standard_normal(s.shape)) for path, s in SPECS.items()
    }


def updates_of(optimizer, params, grads):
    """Every update, with the parameters held still."""
    tx = optimizer.transform(SPECS, one)
    state = tx.init(params)
    update = jax.jit(tx.update)
    seen = []
    for g in grads:
        updates, state = update(g, state, params)
        seen.append(updates)
    return seen


@pytest.mark.parametrize("cls", [SOAP, Shampoo])
def test_everything_but_matrices_gets_plain_adam(x64, cls):
    params, grads = draws(0), [draws(1), draws(2)]
    seen = updates_of(cls(adam_learning_rate=0.1, clip_norm=None), params, grads)
    adam = optax.adam(0.1, 0.9, 0.95, 1e-10)
    state = adam.init(params)
    for ours, g in zip(seen, grads, strict=True):
        theirs, state = adam.update(g, state)
        for path in ("head", "gain"):
            np.testing.assert_allclose(ours[path], theirs[path], rtol=1e-12)
    assert cls().groups(SPECS)["experts"] == cls.group == cls.__name__.lower()


def test_the_first_update_of_soap_is_the_decay_alone(x64):
    params = draws(0)
    optimizer = SOAP(learning_rate=0.5, weight_decay=0.25, precondition_every=1)
    first, second = updates_of(optimizer, params, [draws(1), draws(2)])
    decay = -0.5 * 0.25 * params["experts"]
    np.testing.assert_allclose(first["experts"], decay, rtol=1e-14)
    assert np.all(second["experts"] != decay)


def test_the_first_update_of_shampoo_is_orthogonal_expert_by_expert(x64):
    optimizer = Shampoo(learning_rate=1.0, weight_decay=0.0)
    first = updates_of(optimizer, draws(0), [draws(1)])[0]["experts"]
    for at in np.ndindex(2, 2):
        np.testing.assert_allclose(first[at].T @ first[at], np.eye(3), atol=1e-9)


@pytest.mark.parametrize(
    "cls, rule, args, keywords",
    [
        (SOAP, scale_by_soap, (0.8, 0.7), {"eps": 1e-3, "shampoo_beta": 0.6}),
        (Shampoo, scale_by_shampoo, (0.8, 0.7), {"cutoff": 0.05}),
    ],
)
def test_every_number_reaches_the_rule(x64, cls, rule, args, keywords):
    keywords |= {"precondition_every": 2, "max_dim": 3}
    b1, b2 = args
    optimizer = cls(
        learning_rate=0.5, weight_decay=0.0, clip_norm=None, b1=b1, b2=b2, **keywords
    )
    params, grads = draws(0), [draws(t) for t in range(1, 5)]
    seen = updates_of(optimizer, params, grads)
    tx = rule(b1, b2, **keywords)
    update, state = jax.jit(tx.update), tx.init({"k": params["experts"]})
    for ours, g in zip(seen, grads, strict=True):
        u, state = update({"k": g["experts"]}, state)
        np.testing.assert_allclose(ours["experts"], -0.5 * u["k"], rtol=1e-10)


@pytest.mark.parametrize("cls", [SOAP, Shampoo])
@pytest.mark.parametrize("key", ["precondition_every", "max_dim"])
def test_counts_below_one_are_refused(cls, key):
    with pytest.raises(ValueError, match=f"^{key}: .*got 0"):
        cls.check(**{key: 0})


@pytest.mark.parametrize("cls", [SOAP, Shampoo])
def test_a_matrix_that_is_no_kernel_is_refused_by_name(cls):
    specs = {"heads": ParamSpec("matrix", (2, 4, 2, 3), 1)}
    with pytest.raises(ValueError, match="heads"):
        cls().transform(specs, one)
