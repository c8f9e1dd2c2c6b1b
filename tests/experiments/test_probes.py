"""Looking inside training: what is recorded, and that looking changes nothing."""

import json
import math

import numpy as np
import pytest
from rich.console import Console

from experiments import api
from experiments.tasks.train import Train


def run(configs):
    (member,) = api.run(configs, console=Console(quiet=True))
    assert member.state == "completed", member.error
    folder = member.directory.path

    def rows(file):
        path = folder / file
        return (
            [json.loads(t) for t in path.read_text().splitlines()]
            if path.exists()
            else []
        )

    return member, rows("metrics.jsonl"), rows("probes.jsonl")


@pytest.mark.parametrize("every", [1, 25])
def test_layers_add_up_to_the_logged_gradient(compose, every):
    """sqrt of the sum of squares over layers and parameters is grad_norm, to 1e-5."""
    _, metrics, probes = run(
        compose("steps=60", "log_every=1", f"task.probe_every={every}")
    )
    by_step = {row["step"]: row for row in metrics}
    steps = sorted({row["step"] for row in probes})
    assert steps == sorted({1, 60, *range(every, 61, every)})
    for step in steps:
        found = {r["quantity"]: r["values"] for r in probes if r["step"] == step}
        squares = sum(
            v * v
            for name, values in found.items()
            if name.startswith("grad_norm/") and name != "grad_norm/total"
            for v in values
        )
        logged = by_step[step]["grad_norm"]
        np.testing.assert_allclose(math.sqrt(squares), logged, rtol=1e-5)
        assert found["loss"] == [by_step[step]["loss"]]
        assert len(found["grad_norm/ffn/up/kernel"]) == 2
        assert len(found["stream_mean_square"]) == 4


def test_looking_changes_no_bit_of_training(compose):
    """On CPU, whether the cadence is none, sparse or dense."""
    digests = {
        run(compose("steps=60", *how))[0].directory.status().params_digest
        for how in ((), ("task.probe_every=20",), ("task.probe_every=1",))
    }
    assert len(digests) == 1


def test_a_sparse_probe_step_runs_alone_and_others_are_not_slowed():
    task = Train(probe_every=20)
    assert not task.probes_densely
    assert task.functions == ("init", "train_steps", "evaluate", "probed_steps")
    assert [s for s in range(1, 51) if task.probes_at(s, 50)] == [1, 20, 40, 50]
    assert [task.next_probe(s, 50) for s in (0, 1, 19, 20, 40, 49)] == [
        1, 20, 20, 40, 50, 50,
    ]  # fmt: skip


def test_without_probes_nothing_is_compiled_for_them():
    assert "probed_steps" not in Train().functions
    assert Train(eval_every=None).functions == ("init", "train_steps")


def test_dense_probing_compiles_one_training_program():
    assert Train(probe_every=1).functions == ("init", "evaluate", "probed_steps")


def test_rows_count_what_a_batch_holds(compose):
    """Rows of a source without tokens, where batch_size and seq_len do not apply."""
    configs = compose(
        "model=residual_mlp", "data=gaussian", "data.n_rows=7", "steps=5", "log_every=1"
    )
    _, metrics, _ = run(configs)
    assert [row["tokens"] for row in metrics] == [0, 7, 14, 21, 28, 35]
