"""Rate, decay and clip of a role."""

import inspect
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from omegaconf import OmegaConf

from blocks.parameters import ROLES, ParamSpec
from experiments import api
from experiments.group import plan
from experiments.optimizers.adamw import AdamW
from experiments.optimizers.muon import Muon
from experiments.optimizers.roles import STANDARD, Role, Roles
from experiments.optimizers.sgd import SGD

CONF = Path(__file__).parents[3] / "conf" / "roles"
SPECS = {
    "kernel": ParamSpec("matrix", (2, 3)),
    "table": ParamSpec("embedding", (4,)),
    "gain": ParamSpec("gain", (3,)),
    "other_gain": ParamSpec("gain", (2,)),
}


def roles(**changed):
    return Roles(**{**STANDARD.by_name, **changed})


def one_step(optimizer, params, grads):
    tx = optimizer.transform(SPECS, lambda count: jnp.float32(1))
    updates, _ = tx.update(grads, tx.init(params), params)
    return {k: np.asarray(v) for k, v in optax.apply_updates(params, updates).items()}


def filled(value):
    return {path: jnp.full(spec.shape, value) for path, spec in SPECS.items()}


def test_there_is_a_keyword_for_every_role_and_the_yaml_is_the_standard():
    assert tuple(inspect.signature(Roles).parameters) == ROLES
    node = OmegaConf.load(CONF / "standard.yaml")
    for name in ROLES:
        own = {k: v for k, v in node[name].items() if k != "_target_"}
        assert own == vars(STANDARD.by_name[name]), name


def test_a_rate_multiplies_the_step_and_its_decay():
    # SGD with gradient 1, p = 2: p - rate * (1 + decay * 2), by hand.
    optimizer = SGD(
        learning_rate=0.1,
        momentum=0.0,
        weight_decay=0.5,
        clip_norm=None,
        roles=roles(
            matrix=Role(rate=3.0, decay=2.0),
            gain=Role(rate=0.0),
            embedding=Role(decay=1),
        ),
    )
    after = one_step(optimizer, filled(2.0), filled(1.0))
    np.testing.assert_allclose(after["kernel"], 2 - 0.3 * (1 + 1.0 * 2), rtol=1e-6)
    np.testing.assert_allclose(after["table"], 2 - 0.1 * (1 + 0.5 * 2), rtol=1e-6)
    np.testing.assert_array_equal(after["gain"], 2)
    assert optimizer.groups(SPECS) == {
        "kernel": "decay",
        "table": "decay",
        "gain": "no_decay",
        "other_gain": "no_decay",
    }


def test_a_clip_is_of_the_whole_role_and_comes_after_the_clip_of_all():
    # 6 + 4 + 3 + 2 entries of 1: norm sqrt(15). Clipped to 1, the gains have norm
    # sqrt(5 / 15); a clip of 0.1 makes them 0.1 / sqrt(5) each.
    optimizer = SGD(
        learning_rate=1.0, momentum=0.0, clip_norm=1.0, roles=roles(gain=Role(clip=0.1))
    )
    after = one_step(optimizer, filled(0.0), filled(1.0))
    np.testing.assert_allclose(after["kernel"], -(15**-0.5), rtol=1e-6)
    for path in ("gain", "other_gain"):
        np.testing.assert_allclose(after[path], -0.1 * 5**-0.5, rtol=1e-6)


@pytest.mark.parametrize("optimizer", [AdamW, Muon, SGD])
def test_a_role_at_rate_zero_stands_still_and_the_others_do_not_notice(optimizer):
    params, grads = filled(1.0), filled(0.1)
    usual = one_step(optimizer(), params, grads)
    still = one_step(optimizer(roles=roles(gain=Role(rate=0.0))), params, grads)
    for path in ("gain", "other_gain"):
        np.testing.assert_array_equal(still[path], 1)
        assert np.all(usual[path] != 1)
    for path in ("kernel", "table"):
        np.testing.assert_array_equal(still[path], usual[path])


def test_the_decay_of_muons_other_group_follows_the_roles():
    specs = {"head": ParamSpec("head", (2, 2)), "gain": ParamSpec("gain", (2,))}
    params = {path: jnp.ones(spec.shape) for path, spec in specs.items()}
    optimizer = Muon(adam_learning_rate=0.5, adam_weight_decay=0.2)
    tx = optimizer.transform(specs, lambda count: jnp.float32(1))
    zeros = jax.tree.map(jnp.zeros_like, params)
    updates, _ = tx.update(zeros, tx.init(params), params)
    np.testing.assert_allclose(updates["head"], -0.1, rtol=1e-6)
    np.testing.assert_array_equal(updates["gain"], 0)


@pytest.mark.parametrize(
    "wrong", [dict(rate=-1.0), dict(decay=float("nan")), dict(clip=0.0)]
)
def test_wrong_numbers_are_refused(wrong):
    (key,) = wrong
    with pytest.raises(ValueError, match=f"^{key}: "):
        Role.check(**wrong)


def test_rates_and_decays_of_roles_share_a_program(tmp_path):
    configs = api.compose(
        [
            "model=tiny",
            f"runtime.output_dir={tmp_path}",
            "optimizer.learning_rate=1e-3,2e-3",
            "optimizer.weight_decay=0,0.1",
            "optimizer.roles.embedding.rate=0.5,1",
            "seed=0,1",
        ]
    )
    groups = plan(configs)
    assert [len(group.members) for group in groups] == [16]


def test_a_mistyped_role_is_named(tmp_path):
    with pytest.raises(
        Exception, match=r"did you mean optimizer\.roles\.embedding\.rate\?"
    ):
        api.compose(["optimizer.roles.embeding.rate=0.5"])
    with pytest.raises(
        Exception, match=r"optimizer\.roles\.gain\.rate: expected a fin"
    ):
        api.compose(["optimizer.roles.gain.rate=-1"])
