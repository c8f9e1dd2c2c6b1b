"""Looking inside training: what is recorded, and that looking changes nothing."""

import json
import math

import jax
import numpy as np
import pytest
from omegaconf import OmegaConf
from rich.console import Console

from analysis.load import load
from experiments import api
from experiments.compose import CONF
from experiments.execution import Executables
from experiments.group import plan
from experiments.members import stack_inputs
from experiments.parts import Part
from experiments.probing import Probe, probe_of
from experiments.tasks.train import Train

FULL = "task.probe={_target_: experiments.probing.Probe, spectra: true}"


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


def test_log_cadence_is_dense_first_and_twenty_parts_then():
    task = Train(probe_every="log")
    assert not task.probes_densely
    assert [s for s in range(1, 1001) if task.probes_at(s, 1000)] == [
        1, 2, 4, 8, 16, 32, *range(50, 1001, 50),
    ]  # fmt: skip
    assert [s for s in range(1, 51) if task.probes_at(s, 50)][-4:] == [44, 46, 48, 50]
    assert task.next_probe(32, 1000) == 50
    assert not any(Train().probes_at(s, 10) for s in range(1, 11))
    Train.check(probe_every="log")
    with pytest.raises(ValueError, match="log or null, got 'often'"):
        Train.check(probe_every="often")


def test_dense_probing_compiles_one_training_program():
    assert Train(probe_every=1).functions == ("init", "evaluate", "probed_steps")


def test_rows_count_what_a_batch_holds(compose):
    """Rows of a source without tokens, where batch_size and seq_len do not apply."""
    configs = compose(
        "model=residual_mlp", "data=gaussian", "data.n_rows=7", "steps=5", "log_every=1"
    )
    _, metrics, _ = run(configs)
    assert [row["tokens"] for row in metrics] == [0, 7, 14, 21, 28, 35]


# -- norms, scores, singular values ------------------------------------------------


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    """One step of SGD, looked into with all there is: log rows and frames."""
    folder = tmp_path_factory.mktemp("full")
    configs = api.compose(
        [
            "model=tiny", "data=markov", "batch_size=4", "seq_len=16", "steps=1",
            "task.eval_every=null", "task.probe_every=log", FULL,
            "norm=derf", "norm@model.attn_norm=rmsnorm", "optimizer=sgd",
            "optimizer.clip_norm=null", "optimizer.learning_rate=0.5",
            "schedule=constant", f"runtime.output_dir={folder}",
        ]
    )  # fmt: skip
    _, _, probes = run(configs)
    (group,) = plan(configs)
    inputs = stack_inputs(group.members, group.programs.program.dtype)
    state = group.programs.call("init", *inputs)
    params = jax.tree.map(lambda x: np.asarray(x)[0], state.params)
    found = {r["quantity"]: r for r in probes}
    return found, params, load(folder / "train").probes


def test_rows_say_of_which_layer_site_or_model_they_are(full):
    found, _, frame = full
    axes = {
        "site/x_rms": ("site", 4),
        "site/sat99": ("site", 4),
        "final/elasticity": ("scalar", 1),
        "attention_logit_max/0": ("layer", 2),
        "attention_logit_max/1": ("layer", 2),
        "sigma1/attn/q/kernel": ("layer", 2),
        "stable_rank/ffn/down/kernel": ("layer", 2),
        "frobenius/attn/v/kernel": ("layer", 2),
        "update_sigma1/ffn/up/kernel": ("layer", 2),
        "update_ratio/ffn/up/kernel": ("layer", 2),
        "update_norm/ffn/in_norm/alpha": ("layer", 2),
        "update_norm/head/kernel": ("scalar", 1),
        "sigma1_product/attn/o_v": ("layer", 2),
        "sigma1_product/ffn/down_up": ("layer", 2),
        "head_sigma1/attn/q_k/0": ("layer", 2),
    }
    for name, (axis, length) in axes.items():
        assert (found[name]["axis"], len(found[name]["values"])) == (axis, length)
        (row,) = frame.filter(frame["quantity"] == name).iter_rows(named=True)
        assert (row["axis"], row["values"]) == (axis, found[name]["values"])
    assert found["site/sat99"]["values"][::2] == [None, None]  # attn has an RMSNorm
    assert found["site/mean_abs_g"]["values"] == [1.0] * 4


def test_the_rows_of_the_first_step_are_of_the_untrained_model(full):
    found, params, _ = full
    for name in ("attn/o", "ffn/up"):
        w = params[f"blocks/layers/{name.replace('/', '/branch/')}/kernel"]
        np.testing.assert_allclose(
            found[f"sigma1/{name}/kernel"]["values"],
            np.linalg.svd(w, compute_uv=False)[:, 0],
            rtol=2e-6,
        )


def test_the_update_is_the_one_that_is_applied(full):
    """Of plain SGD learning_rate times the gradient."""
    found, params, _ = full
    gradients = {k: r for k, r in found.items() if k.startswith("grad_norm/")}
    del gradients["grad_norm/total"]
    assert len(gradients) > 10
    for name, row in gradients.items():
        update = found["update_norm/" + name.removeprefix("grad_norm/")]
        assert update["axis"] == row["axis"]
        np.testing.assert_allclose(
            update["values"], 0.5 * np.array(row["values"]), rtol=1e-5, err_msg=name
        )
    w = params["blocks/layers/ffn/branch/up/kernel"]
    size = np.sqrt((w**2).sum(axis=(1, 2)))
    np.testing.assert_allclose(
        found["update_ratio/ffn/up/kernel"]["values"],
        np.array(found["update_norm/ffn/up/kernel"]["values"]) / size,
        rtol=1e-5,
    )


@pytest.mark.parametrize("norm", ["rmsnorm", "derf", "ema_blend_input"])
def test_what_is_looked_at_leaves_the_unprobed_program_alone(compose, norm):
    def text(*how):
        (group,) = plan(compose(f"norm={norm}", *how))
        programs = Executables(group.programs.program, group.programs.layout)
        names = ("state", "seeds", "values", "steps", "count", "data")
        shapes = programs.abstract(None, names)
        return jax.jit(programs.program.train_steps).lower(*shapes).as_text()

    assert text() == text("task.probe_every=20", FULL)


def test_looking_at_everything_changes_no_bit_of_training(compose):
    digests = {
        run(compose("steps=20", "norm=derf", "task.eval_every=null", *how))[0]
        .directory.status()
        .params_digest
        for how in ((), ("task.probe_every=1", FULL), ("task.probe_every=log", FULL))
    }
    assert len(digests) == 1


def test_choices_of_a_probe():
    parts = {
        file.stem: Part.parse(
            OmegaConf.to_container(OmegaConf.load(file)), "task.probe"
        )
        for file in (CONF / "probe").glob("*.yaml")
    }
    built = {name: part.build({}, "task.probe") for name, part in parts.items()}
    assert built["standard"].looks == Probe().looks == ("norms", "logits")
    assert built["stream"].looks == ()
    assert built["full"].spectra
    train = Part.parse({"_target_": "experiments.tasks.train.Train"}, "task")
    assert vars(probe_of(train)) == vars(built["standard"])
    depth = Part.parse({"_target_": "experiments.tasks.depth.Depth"}, "task")
    assert vars(probe_of(depth)) == vars(built["stream"])


def test_a_run_whose_norms_saturate_says_so_and_goes_on(compose):
    saturated = ("norm=derf", "model.norm.alpha_init=1000", "steps=12")
    member, _, _ = run(compose(*saturated, "task.probe_every=4"))
    assert "step 4: 5 of 5 pointwise norms" in member.note
    member, _, _ = run(compose("norm=derf", "steps=12", "task.probe_every=4"))
    assert member.note is None
