"""What a run measures on validation data: the loss, and what its model adds."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from experiments import api
from experiments.data.digits import Digits
from experiments.group import load_dataset, plan
from experiments.tasks.count import layout_of_model
from experiments.trained import trained

QUIET = {"console": Console(quiet=True)}
VIT = (
    "model=vit_digits", "data=digits", "model.d_model=16", "model.n_layers=1",
    "model.n_heads=2", "model.d_ff=16", "batch_size=32", "seq_len=1", "steps=60",
    "task.eval_every=30", "task.eval_batches=1", "model.pool=mean",
    "schedule=constant", "optimizer.learning_rate=0.01",
)  # fmt: skip


def rows_of(member):
    text = (member.directory.path / "metrics.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A small vision model after 60 steps: member and rows."""
    output = f"runtime.output_dir={tmp_path_factory.mktemp('vit')}"
    (member,) = api.run(api.compose([*VIT, output]), **QUIET)
    assert member.state == "completed", member.error
    return member, rows_of(member)


def test_the_last_row_has_the_share_of_held_out_images_that_are_right(run):
    member, rows = run
    (model, _), data = trained(member.directory.path), Digits().load().arrays
    pixels = (data["validation_images"] - data["mean"]) / data["std"]
    logits = np.asarray(model(jnp.asarray(pixels[:, None], jnp.float32)), float)
    labels = data["validation_labels"]
    right = (logits.argmax(axis=1) == labels).mean()
    assert 0.15 < right < 1  # something was learned, and not everything
    assert rows[-1]["val_accuracy"] == pytest.approx(right, abs=1e-6)
    shifted = logits - logits.max(axis=1, keepdims=True)
    ln_p = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    expected = -ln_p[np.arange(len(labels)), labels].mean()
    assert rows[-1]["val_loss"] == pytest.approx(expected, rel=1e-5)


def test_accuracy_stands_beside_the_loss_in_every_row_that_has_one(run):
    member, rows = run
    evaluated = [row for row in rows if "val_loss" in row]
    assert [row["step"] for row in evaluated] == [0, 30, 60]
    assert all(0 <= row["val_accuracy"] <= 1 for row in evaluated)
    assert [row for row in rows if "val_accuracy" in row] == evaluated
    assert member.val_accuracy == rows[-1]["val_accuracy"]
    assert member.val_loss == rows[-1]["val_loss"]


def test_items_are_images(run):
    _, rows = run
    assert rows[-1]["tokens"] == 60 * 32


def test_a_finished_run_is_shown_with_its_accuracy(run):
    member, _ = run
    ((again,),) = (group.members for group in plan([member.config]))
    assert again.note == "finished before"
    assert again.val_accuracy == member.val_accuracy


def test_what_a_run_measured_before_it_diverged_is_no_result(run):
    member, rows = run
    member.recall_evaluation(rows)
    assert member.val_accuracy is not None
    member.forget_evaluation()
    assert (member.val_loss, member.val_accuracy) == (None, None)
    member.recall_evaluation(rows)


def test_a_language_model_measures_the_loss_alone(compose):
    (member,) = api.run(compose("steps=10"), **QUIET)
    assert not any("val_accuracy" in row for row in rows_of(member))
    assert member.val_accuracy is None
    assert member.val_loss is not None


def test_several_batches_of_one_set_are_its_mean(run, tmp_path):
    _, rows = run
    output = f"runtime.output_dir={tmp_path}"
    (other,) = api.run(api.compose([*VIT, "task.eval_batches=3", output]), **QUIET)
    last = rows_of(other)[-1]
    assert last["val_accuracy"] == pytest.approx(rows[-1]["val_accuracy"], abs=1e-6)
    assert last["val_loss"] == pytest.approx(rows[-1]["val_loss"], rel=1e-5)


@pytest.mark.parametrize("task", ["depth", "propagate"])
@pytest.mark.parametrize(
    "overrides",
    [
        VIT[:8],
        ("model=bert_tiny", "model.d_model=16", "data=masked", "data@data.text=markov"),
    ],
    ids=["images", "masked texts"],
)
def test_untrained_models_of_other_data_are_measured_too(compose, task, overrides):
    (member,) = api.run(compose(*overrides, "batch_size=4", task=task), **QUIET)
    assert member.state == "completed", member.error
    text = (member.directory.path / "probes.jsonl").read_text()
    assert "grad_norm/ffn/up/kernel" in text


# -- masked texts --------------------------------------------------------------


def test_masks_are_seen_by_training_and_evaluation(compose):
    (member,) = api.run(
        compose(
            "model=bert_tiny", "data=masked", "data@data.text=copy", "steps=20",
            "model.d_model=16", "seq_len=16",
        ),
        **QUIET,
    )  # fmt: skip
    assert member.state == "completed", member.error
    losses = [row["loss"] for row in rows_of(member) if "loss" in row]
    assert all(0 < loss < 8 for loss in losses)
    assert rows_of(member)[-1]["tokens"] == 20 * 4 * 16


def test_bert_tiny_has_the_size_of_the_released_one():
    """4,385,920 with a pooler, d^2 + d, in place of the head for masked tokens."""
    (config,) = api.compose(["model=bert_tiny", "model.vocab_size=30522"])
    d, head = 128, 128**2 + 128 + 2 * 128 + 30522
    layout = layout_of_model(config)
    n_params = sum(spec.size for spec in layout.specs.values())
    assert n_params == 4_385_920 - (d**2 + d) + head == 4_416_698


@pytest.mark.slow
def test_an_encoder_falls_below_the_unigram_entropy_of_the_library(compose):
    configs = compose(
        "model=bert_tiny", "data=masked", "batch_size=32", "seq_len=128", "steps=400",
    )  # fmt: skip
    (member,) = api.run(configs, **QUIET)
    unigram = load_dataset(configs[0].data).references["unigram"]
    assert member.state == "completed", member.error
    assert member.val_loss < unigram - 0.1
