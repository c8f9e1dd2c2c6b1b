"""Training that begins with weights of a folder, also with parts swapped."""

import json
import pathlib
import shutil

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from blocks.modes import set_training
from experiments import api, weights
from experiments.errors import ConfigError
from experiments.group import plan
from experiments.program import VALIDATION

RELEASED = pathlib.Path(__file__).parents[1] / "golden" / "released" / "llama3"


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "released"
    path.mkdir()
    shutil.copy(RELEASED / "config.json", path)
    save_file(load_file(RELEASED / "weights.safetensors"), path / "model.safetensors")
    return path


@pytest.fixture
def trained(folder, tmp_path):
    """trained(*overrides): runs of four steps from the folder, by seed."""

    def trained(*more, where="a"):
        given = any(o.startswith("model.from_checkpoint") for o in more)
        source = () if given else (f"model.from_checkpoint={folder}",)
        common = (
            *source,
            "data=copy",
            "seq_len=16",
            "batch_size=2",
            "steps=4",
            "task.eval_every=4",
            "task.eval_batches=2",
            "runtime.checkpoint.every=null",
            f"runtime.output_dir={tmp_path / where}",
        )
        members = api.run(api.compose([*common, *more]))
        assert all(m.state == "completed" for m in members), members[0].error
        return {m.config.seed: m for m in members}

    return trained


def digests(members):
    return {seed: m.directory.status().params_digest for seed, m in members.items()}


def test_the_first_evaluation_is_that_of_the_weights(trained):
    (member,) = trained("norm=derf", "optimizer.learning_rate=1e-3").values()
    row, *_ = member.directory.rows("metrics.jsonl")
    layout, params, rest = weights.load(member.config)
    model = layout.merge(params, rest)
    set_training(model, False)
    (group,) = plan([member.config])
    program, losses = group.programs.program, []
    for i in range(2):
        batch = program._batch(
            group.programs.data, jnp.uint32(0), VALIDATION, i, "validation"
        )
        losses.append(float(model.loss(batch)[0]))
    assert row["step"] == 0
    assert row["val_loss"] == pytest.approx(np.mean(losses), rel=1e-5)


def test_seeds_begin_alike_and_see_other_batches(trained):
    members = trained("seed=0,1")
    first = [m.directory.rows("metrics.jsonl")[0] for m in members.values()]
    assert [row["step"] for row in first] == [0, 0]
    assert len(set(digests(members).values())) == 2
    # One by itself, in the other layout of a CPU: the same to the bit.
    alone = trained("seed=1", "runtime.layout=map", where="b")
    assert digests(alone)[1] == digests(members)[1]


def test_a_run_that_was_cut_before_its_first_checkpoint_begins_as_it_began(trained):
    (member,) = trained("norm=derf").values()
    path, whole = member.directory.path, digests({0: member})
    rows = (path / "metrics.jsonl").read_text()
    shutil.rmtree(path / "checkpoints")
    status = json.loads((path / "status.json").read_text())
    (path / "status.json").write_text(json.dumps(status | {"state": "preempted"}))
    (again,) = trained("norm=derf").values()
    assert again.directory.path == path
    assert again.directory.status().attempt == 2
    assert digests({0: again}) == whole
    losses = [[json.loads(line).get("loss") for line in rows.splitlines()]]
    losses += [[r.get("loss") for r in again.directory.rows("metrics.jsonl")]]
    assert losses[0] == losses[1]


def test_what_was_taken_is_in_the_run_directory_and_said(trained, folder, capsys):
    (member,) = trained("norm=derf").values()
    env = json.loads((member.directory.path / "env.json").read_text())["weights"]
    assert env["path"] == str(folder)
    assert env["changed"] == ["model.norm"]
    assert "table" in env["taken"]
    assert "final_norm/alpha" in env["fresh"]
    assert env["left"] == []
    assert len(env["fingerprint"]) == 16
    said = capsys.readouterr().out.splitlines()
    (line,) = [n for n, text in enumerate(said) if text.startswith("weights of ")]
    assert said[line + 1].startswith("as initialized: blocks/layers/attn/in_norm/alpha")
    assert said[line + 2] == "left in the checkpoint: nothing"


def test_a_run_of_ours_can_be_gone_on_with_in_other_parts(trained):
    (first,) = trained().values()
    path = first.directory.path
    (member,) = trained(f"model.from_checkpoint={path}", "norm=dyt", where="b").values()
    assert member.config.weights.path == str(path)
    assert member.config.model["norm"].name == "DyT"


def test_data_with_more_symbols_than_the_model_are_refused(trained):
    with pytest.raises(ConfigError, match="model.vocab_size: the data have 256 symb"):
        trained("data=stdlib")
