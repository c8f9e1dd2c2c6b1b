"""Guards inside the step: which are taken, and that without one nothing is added."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.errors import ConfigError
from experiments.guards.running import AFTER
from experiments.guards.skip import Skip
from experiments.guards.stop import Stop
from experiments.program import State

NORM = 2.0


def step(guard, state, norm, loss=1.0):
    """One step that adds one to everything; what is told."""
    after = State(
        params={"w": state.params["w"] + 1},
        rest={"n": state.rest["n"] + 1},
        opt=(state.opt[0] + 1,),
        step=state.step + 1,
        average={"w": state.average["w"] + 1},
        guard=state.guard,
    )
    row = {"loss": jnp.float32(loss), "grad_norm": jnp.float32(norm)}
    return guard.after(state, after, row)


@pytest.fixture
def start():
    """A state before the first step."""

    def start(guard):
        one = jnp.zeros(2)
        return State(
            {"w": one},
            {"n": jnp.int32(0)},
            (jnp.int32(0),),
            jnp.int32(0),
            {"w": one},
            guard.init(jnp.float32),
        )

    return start


def n_taken(state) -> set[int]:
    """How many steps every part of a state has seen: one number, if they agree."""
    parts = (state.params, state.rest, state.opt, state.average)
    return {int(x) for leaf in jax.tree.leaves(parts) for x in np.ravel(leaf)}


@pytest.mark.parametrize(
    "norm, loss", [(np.nan, 1.0), (np.inf, 1.0), (1.0, np.nan), (1.0, np.inf)]
)
def test_of_a_step_that_is_not_finite_nothing_stays(start, norm, loss):
    guard = Skip()
    state, told = step(guard, start(guard), NORM)
    assert {k: int(v) for k, v in told.items()} == {"skipped": 0, "in_a_row": 0}
    state, told = step(guard, state, norm, loss)
    assert n_taken(state) == {1}
    assert int(state.step) == 2
    assert int(guard.count(state)) == 1
    assert {k: int(v) for k, v in told.items()} == {"skipped": 1, "in_a_row": 1}
    state, told = step(guard, state, NORM)
    assert n_taken(state) == {2}
    assert {k: int(v) for k, v in told.items()} == {"skipped": 1, "in_a_row": 0}


def test_the_running_norm_is_that_of_the_steps_taken(start):
    guard = Skip(factor=3.0, decay=0.5)
    state = start(guard)
    expected = None
    for i in range(AFTER):
        norm = 1e3 if i == 0 else NORM  # no norm is held against the first steps
        state, _ = step(guard, state, norm)
        expected = norm if expected is None else (expected + norm) / 2
    assert n_taken(state) == {AFTER}
    np.testing.assert_allclose(state.guard["norm"], expected, rtol=1e-6)
    state, told = step(guard, state, 3.01 * expected)
    assert int(told["skipped"]) == 1
    np.testing.assert_allclose(state.guard["norm"], expected, rtol=1e-6)
    state, told = step(guard, state, 2.99 * expected)
    assert int(told["skipped"]) == 1
    np.testing.assert_allclose(state.guard["norm"], 1.995 * expected, rtol=1e-6)
    assert n_taken(state) == {AFTER + 1}


def test_without_a_factor_a_large_step_is_taken(start):
    guard = Skip()
    state = start(guard)
    for _ in range(AFTER + 1):
        state, _ = step(guard, state, NORM)
    state, told = step(guard, state, 1e30)
    assert int(told["skipped"]) == 0
    assert n_taken(state) == {AFTER + 2}


def test_stop_takes_the_step_and_tells_of_it(start):
    guard = Stop(factor=3.0)
    state = start(guard)
    for _ in range(AFTER):
        state, told = step(guard, state, NORM)
    state, told = step(guard, state, 3.01 * NORM)
    assert bool(told["stands_out"])
    assert n_taken(state) == {AFTER + 1}
    assert int(guard.count(state)) == AFTER + 1
    fine = guard.judged(
        np.array([True, True, False]), {"stands_out": np.array([0, 1, 0])}
    )
    assert fine.tolist() == [True, False, False]


def test_so_many_in_a_row_and_no_more():
    guard = Skip(most=2)
    told = {"in_a_row": np.array([0.0, 1, 2, 3, 0])}
    fine = guard.judged(np.array([True, False, False, False, False]), told)
    assert fine.tolist() == [True, True, True, False, False]


@pytest.mark.parametrize(
    "override, message",
    [
        ("task.guard.factor=1", "factor must be above 1, got 1"),
        ("task.guard.decay=1", "decay must be in 0 .. 1"),
        ("task.guard.most=0", "most must be at least 1, got 0"),
    ],
)
def test_a_rule_that_cannot_be_is_refused(compose, override, message):
    with pytest.raises(ConfigError, match=rf"task\.guard\.{message}"):
        compose("guard=skip", override)


# -- in a run --------------------------------------------------------------------------


def lowered(group) -> str:
    shapes = group.programs.abstract(
        None, ["state", "seeds", "values", "steps", "count", "data"]
    )
    return jax.jit(group.programs.program.train_steps).lower(*shapes).as_text()


def test_without_a_guard_the_program_has_nothing_of_one(planned):
    without = planned()
    (state,) = without.programs.abstract(None, ["state"])
    assert jax.tree.leaves(state.guard) == []
    checks = [
        lowered(group).count("is_finite") for group in (without, planned("guard=skip"))
    ]
    assert checks[0] + 2 == checks[1]  # of the loss and of the norm
