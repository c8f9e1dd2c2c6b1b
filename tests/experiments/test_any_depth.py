"""One program for all depths gives what a program per depth gives."""

import jax
import numpy as np
import pytest

from experiments.errors import ConfigError
from experiments.group import plan
from experiments.members import stack_inputs

MLP = (
    "model=residual_mlp",
    "data=gaussian",
    "init=kaiming",
    "norm=layernorm",
    "model.ffn.activation=relu",
)
CASES = [
    (*MLP, "placement=post"),
    ("placement=pre", "norm=dyt", "ffn=swiglu", "model.tied_head=true"),
    ("placement=peri", "norm@model.attention.qk_norm=rmsnorm", "model.n_kv_heads=1"),
]


def probes(configs):
    """(depth, seed) -> quantities of each run."""
    found = {}
    for group in plan(configs):
        programs = group.programs
        (name,) = group.task.functions
        for batch in programs.layout.batches(group.members):
            inputs = stack_inputs(batch, programs.program.dtype)
            measured = jax.device_get(programs.call(name, *inputs, programs.data))
            for i, member in enumerate(batch):
                depth = member.config.model["n_layers"]
                found[depth, member.config.seed] = {
                    k: v[i][:depth] if v[i].ndim else v[i] for k, v in measured.items()
                }
    return found


@pytest.mark.parametrize("overrides", CASES, ids=lambda c: " ".join(c[:2]))
def test_agrees_with_plain_differentiation_of_each_depth(compose, overrides):
    """In float64 to 1e-12 of the largest entry, in every quantity and layer."""
    wide = (*overrides, "model.dtype=float64", "model.n_layers=3,6", "seed=0,1")
    grown = probes(compose(*wide, task="depth"))
    plain = probes(compose(*wide, "task.any_depth=false", task="depth"))
    assert grown.keys() == plain.keys() == {(3, 0), (3, 1), (6, 0), (6, 1)}
    for run, quantities in plain.items():
        assert grown[run].keys() == quantities.keys()
        for name, expected in quantities.items():
            np.testing.assert_allclose(
                grown[run][name],
                expected,
                rtol=0,
                atol=1e-12 * np.abs(expected).max(),
                err_msg=f"{run} {name}",
            )


def test_agrees_in_float32(compose):
    grown = probes(compose(*MLP, "model.n_layers=3,6", task="depth"))
    plain = probes(
        compose(*MLP, "model.n_layers=3,6", "task.any_depth=false", task="depth")
    )
    for run, quantities in plain.items():
        for name, expected in quantities.items():
            np.testing.assert_allclose(
                grown[run][name], expected, rtol=1e-5, atol=1e-9, err_msg=name
            )


def test_room_for_deeper_runs_changes_no_bit(compose):
    """A run alone has room for its own depth only, in a group for the deepest."""
    together = probes(compose(*MLP, "model.n_layers=4,24", task="depth"))
    alone = probes(compose(*MLP, "model.n_layers=4", task="depth"))
    for name, value in alone[4, 0].items():
        np.testing.assert_array_equal(together[4, 0][name], value, name)


def test_a_sweep_over_depth_is_one_program(compose):
    groups = plan(compose(*MLP, "model.n_layers=2,4,8", "seed=0,1", task="depth"))
    assert [len(g.members) for g in groups] == [6]
    env = [groups[0].env(m) for m in groups[0].members]
    shapes = {e["param_shapes"]["blocks/layers/ffn/branch/up/kernel"][0] for e in env}
    assert shapes == {2, 4, 8}
    assert len({e["n_params"] for e in env}) == 3


def test_training_keeps_a_program_per_depth(compose):
    assert len(plan(compose("model.n_layers=2,3"))) == 2


def test_the_number_of_layers_is_still_checked(compose):
    with pytest.raises(ConfigError, match=r"model\.n_layers must be at least 1"):
        compose(*MLP, "model.n_layers=0", task="depth")
