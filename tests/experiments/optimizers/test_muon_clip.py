"""Muon with QK-clip, as a whole training step."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import api
from experiments.errors import ConfigError
from experiments.execution import Executables, MemberLayout
from experiments.group import executables, load_dataset, plan, signature_of
from experiments.members import stack_inputs
from experiments.optimizers.qk_clip import qk_clip

TINY = ["model=tiny", "data=markov", "steps=4", "task.probe_every=1", "seed=3"]
SAME = ["optimizer.scale=rms0.2", "optimizer.learning_rate=1e-3"]
TAU = 0.05


def composed(*overrides):
    (config,) = api.compose([*TINY, *overrides])
    return config


@pytest.fixture
def run(tmp_path):
    """Overrides -> (call(function, state), program, initial state) of one run."""

    def start(*overrides):
        config = composed(f"runtime.output_dir={tmp_path}", *overrides)
        (group,) = plan([config])
        programs = Executables(group.programs.program, MemberLayout("threads", 1))
        inputs = stack_inputs(group.members, programs.program.dtype)

        def call(function, state):
            arguments = (*inputs, jnp.int32(1), programs.data)
            return programs.call(function, state, *arguments)

        return call, programs.program, programs.call("init", *inputs)

    return start


def test_a_step_is_one_of_muon_and_then_a_clip_by_its_own_scores(run):
    muon, program, state = run("optimizer=muon", *SAME)
    after, rows = muon("probed_steps", state)
    scores = rows["attention_logit_max"][0, 0]
    assert scores.max() > TAU  # or there would be nothing to see
    heads = (program.signature.model["n_heads"],) * 2
    params = {path: x[0] for path, x in after.params.items()}
    expected = qk_clip(params, program.layout.specs, scores, TAU, *heads)

    clipped, _, state = run("optimizer=muon_clip", f"optimizer.tau={TAU}")
    for function in ("train_steps", "probed_steps"):
        found, _ = clipped(function, jax.tree.map(jnp.copy, state))
        assert found.params.keys() == expected.keys()
        for path, x in expected.items():
            np.testing.assert_allclose(found.params[path][0], x, atol=1e-7)


def test_scores_beyond_tau_come_down_to_it(run):
    still = ["optimizer.learning_rate=0", "optimizer.adam_learning_rate=0"]
    clipped, _, state = run("optimizer=muon_clip", f"optimizer.tau={TAU}", *still)
    state, rows = clipped("probed_steps", state)
    before = rows["attention_logit_max"][0, 0]
    again = dataclasses.replace(
        state, step=jnp.zeros_like(state.step)
    )  # the same batch
    _, rows = clipped("probed_steps", again)
    # Of the first block: those behind it see another stream.
    expected = np.minimum(before[0], TAU)
    np.testing.assert_allclose(
        rows["attention_logit_max"][0, 0, 0], expected, rtol=1e-5
    )


def test_parts_of_a_batch_clip_by_the_largest_of_all(run):
    muon, _, state = run("optimizer=muon", *SAME, "accumulate=2")
    whole, _, _ = run("optimizer=muon", *SAME)
    _, of_parts = muon("probed_steps", jax.tree.map(jnp.copy, state))
    _, of_whole = whole("probed_steps", state)
    name = "attention_logit_max"
    np.testing.assert_allclose(of_parts[name][0, 0], of_whole[name][0, 0], rtol=1e-5)


def test_tau_is_an_input_of_the_program():
    configs = [composed("optimizer=muon_clip", f"optimizer.tau={t}") for t in (1, 2)]
    dataset = load_dataset(configs[0].data)
    one, two = (signature_of(config, dataset) for config in configs)
    assert one == two


@pytest.mark.parametrize(
    "overrides, told",
    [
        (["attention=qwen3"], "qk_norm"),
        (["attention=cosine"], "qk_norm"),  # a norm without parameters
        (["optimizer.tau=0"], "optimizer.tau: expected a finite number > 0, got 0"),
    ],
)
def test_where_scores_do_not_follow_the_kernels_it_is_refused(overrides, told):
    def made():
        config = composed("optimizer=muon_clip", *overrides)
        signature = signature_of(config, load_dataset(config.data))
        return executables(signature, MemberLayout("threads", 1))

    with pytest.raises(ConfigError, match=told):
        made()
