"""What the commands of the README do, as a user runs them."""

import json

import pytest

from tests.launching import SMALL, assert_same_results, launch, rows, runs_below, status


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    """Two norms, two placements, two seeds, through the batched launcher."""
    cwd = tmp_path_factory.mktemp("sweep")
    done = launch("-m", *SWEEP, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return cwd, done


SWEEP = (*SMALL, "steps=60", "norm=rmsnorm,derf", "placement=pre,post", "seed=0,1")


def test_a_sweep_is_one_program_per_shape(sweep):
    cwd, done = sweep
    assert "8 runs, 4 programs" in done.stdout
    assert "8 completed; everything is in outputs/train/" in done.stdout
    assert len(runs_below(cwd / "outputs/train")) == 8
    # Hydra itself leaves nothing behind.
    assert [p.name for p in cwd.iterdir()] == ["outputs"]


def test_basic_launcher_gives_the_same_bits(sweep, tmp_path):
    cwd, _ = sweep
    done = launch("-m", *SWEEP, "hydra/launcher=basic", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["outputs"]
    assert_same_results(tmp_path / "outputs/train", cwd / "outputs/train")


def test_a_run_alone_gives_the_same_bits(sweep, tmp_path):
    cwd, _ = sweep
    alone = (*SMALL, "steps=60", "norm=derf", "placement=post", "seed=1")
    done = launch(*alone, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    ((identity, run),) = runs_below(tmp_path / "outputs/train").items()
    twin = runs_below(cwd / "outputs/train")[identity]
    assert rows(run) == rows(twin)
    assert status(run)["params_digest"] == status(twin)["params_digest"]


def test_what_a_run_records(sweep):
    cwd, _ = sweep
    for run in runs_below(cwd / "outputs/train").values():
        config = json.loads((run / "config.json").read_text())
        env = json.loads((run / "env.json").read_text())
        assert config["model"]["d_model"] == 32
        assert env["layout"] == "threads"
        assert env["group_size"] == 2
        assert env["choices"]["norm"] in ("rmsnorm", "derf")
        assert env["versions"]["jax"]
        assert 0 < env["data"]["references"]["entropy_rate"] < 4.2
        routed = [p for paths in env["optimizer"]["groups"].values() for p in paths]
        assert sorted(routed) == sorted(env["param_shapes"])
        steps = [row["step"] for row in rows(run)]
        assert steps == [0, 10, 20, 30, 40, 50, 60]
        assert {"loss", "grad_norm", "learning_rate", "tokens", "val_loss"} <= set(
            rows(run)[-1]
        )


def test_exploding_runs_are_recorded_and_the_others_finish(tmp_path):
    done = launch(
        "-m", *SMALL, "steps=60", "norm=rmsnorm,derf",
        "optimizer.learning_rate=1e-3,1e6", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "2 completed, 2 diverged" in done.stdout
    for run in runs_below(tmp_path / "outputs/train").values():
        config = json.loads((run / "config.json").read_text())
        if config["optimizer"]["learning_rate"] == 1e6:
            assert status(run)["state"] == "diverged"
            step = status(run)["diverged_step"]
            assert 1 < step < 60
            assert rows(run)[-1]["step"] == step
            assert f"diverged at step {step}" in done.stdout
        else:
            assert status(run)["state"] == "completed"


def test_a_failing_run_takes_no_other_down(tmp_path):
    """A checkpoint folder that cannot be made fails one run, with its traceback."""
    command = ("-m", *SMALL, "steps=20", "seed=0,1,2")
    assert launch(*command, cwd=tmp_path).returncode == 0
    run = runs_below(tmp_path / "outputs/train").popitem()[1]
    node = status(run)
    (run / "status.json").write_text(json.dumps({**node, "state": "running"}))
    for checkpoint in (run / "checkpoints").iterdir():
        checkpoint.rename(tmp_path / checkpoint.name)
    (run / "checkpoints").rmdir()
    (run / "checkpoints").write_text("in the way")
    others = [r for r in runs_below(tmp_path / "outputs/train").values() if r != run]
    for other in others:  # to be done again, too
        (other / "status.json").unlink()

    done = launch(*command, cwd=tmp_path)

    assert done.returncode == 1
    assert "1 of 3 runs failed" in done.stderr
    assert "Traceback" not in done.stderr
    assert status(run)["state"] == "failed"
    assert "checkpoints" in (run / "error.txt").read_text()
    assert all(status(r)["state"] == "completed" for r in others)


def test_compiled_programs_are_found_again(tmp_path):
    """A second process takes the programs from the folder it is told."""
    cache = tmp_path / "programs"
    command = (*SMALL, "steps=20", f"runtime.compilation_cache={cache}")
    assert launch(*command, "seed=0", cwd=tmp_path).returncode == 0
    before = {p.name for p in cache.iterdir() if not p.name.endswith("-atime")}
    assert before
    assert launch(*command, "seed=1", cwd=tmp_path).returncode == 0
    after = {p.name for p in cache.iterdir() if not p.name.endswith("-atime")}
    assert after == before, "another seed is not another program"
