import fcntl
import io
import json
import os
from types import SimpleNamespace

import pytest

from analysis import prune
from analysis.__main__ import main
from analysis.errors import AnalysisError


def with_checkpoint(folder, size=1000):
    step = folder / "checkpoints" / "100"
    step.mkdir(parents=True)
    (step / "arrays").write_bytes(b"x" * size)
    return folder


@pytest.fixture
def home(tmp_path, make_run):
    """A run in every state, each with a checkpoint, and things that are no runs."""
    home = tmp_path / "x"
    for state in ("completed", "diverged", "failed", "preempted", "running"):
        folder = with_checkpoint(make_run(home, state=state))
        folder.rename(home / f"{state}-{folder.name[-12:]}")
    (home / "report").mkdir()
    (home / "report" / "index.html").write_text("a report")
    (home / "notes").mkdir()
    (home / "notes" / "status.txt").write_text("failed")
    return home


def left(home):
    return sorted(p.name.split("-")[0] for p in home.iterdir() if "-" in p.name)


def call(home, *options):
    return main(["prune", str(home), *options])


def test_nothing_is_removed_without_a_yes(home, capsys):
    assert call(home, "--state", "failed,diverged", "--checkpoints") == 0
    out = capsys.readouterr().out
    assert "nothing was removed (3 folders, " in out
    assert len(left(home)) == 5
    for state, what in (("failed", "run"), ("completed", "checkpoints")):
        (line,) = [line for line in out.splitlines() if line.startswith(f"{state}-")]
        assert line.split()[1:3] == [state, what]
    assert "1.0 kB" in out  # of the checkpoints


def test_only_runs_in_the_named_states_go_and_they_go_whole(home, capsys):
    assert call(home, "--state", "failed,diverged", "--yes") == 0
    assert left(home) == ["completed", "preempted", "running"]
    assert "removed 2 folders" in capsys.readouterr().out
    assert (home / "report" / "index.html").exists()
    assert (home / "notes" / "status.txt").exists()
    assert not list(home.glob(".pruned-*"))


def test_a_run_that_nobody_holds_any_more_is_lost(home):
    assert call(home, "--state", "lost", "--yes") == 0
    assert left(home) == ["completed", "diverged", "failed", "preempted"]


def test_checkpoints_go_of_completed_runs_only_and_the_runs_stay(home):
    assert call(home, "--checkpoints", "--yes") == 0
    assert len(left(home)) == 5
    for folder in home.glob("*-*"):
        is_completed = folder.name.startswith("completed")
        assert (folder / "checkpoints").exists() != is_completed
        assert (folder / "status.json").exists()


def test_runs_that_are_not_in_the_sweep_any_more_go(home, capsys):
    assert call(home, "--unlisted", "--yes") == 2
    assert "sweep.json is missing" in capsys.readouterr().err
    kept = [
        {"run_id": "other-slug", "identity": f.name[-12:]} for f in home.glob("comp*")
    ]
    (home / "sweep.json").write_text(json.dumps({"schema": 1, "runs": kept}))
    assert call(home, "--unlisted", "--yes") == 0
    assert left(home) == ["completed"]


def test_a_run_at_which_a_launcher_is_at_work_stays(home, capsys):
    (folder,) = home.glob("failed-*")
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert call(home, "--state", "failed", "--yes") == 0
    out = capsys.readouterr().out
    assert f"kept {folder.name}: a launcher is at work on it" in out
    assert "failed" in left(home)


def test_a_launcher_that_comes_in_between_wins(home):
    items, busy = prune.find(home, ("failed", "preempted"))
    assert (len(items), busy) == (2, [])
    first, second = items
    with (first.run / ".lock").open("w") as lock:  # it is at it now
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path = second.run / "status.json"  # it has been
        path.write_text(path.read_text().replace("preempted", "completed"))
        kept = prune.remove(items)
    assert [reason for _, reason in kept] == [
        "a launcher is at work on it",
        "it has changed since",
    ]
    assert len(left(home)) == 5


def test_the_lock_is_held_while_a_run_goes(home, monkeypatch):
    items, _ = prune.find(home, ("failed",))
    seen = []

    def replace(old, new):
        with (old / ".lock").open("rb") as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        seen.append(old)
        rename(old, new)

    rename = os.replace
    monkeypatch.setattr(prune.os, "replace", replace)
    prune.remove(items)
    assert seen == [items[0].run]


def test_nothing_outside_the_folder_goes(home, tmp_path, make_run):
    elsewhere = with_checkpoint(make_run(tmp_path / "y", state="failed"))
    other = make_run(tmp_path / "y", state="completed")
    (home / "linked-run").symlink_to(elsewhere)
    done = make_run(home, state="completed")
    (done / "checkpoints").symlink_to(elsewhere / "checkpoints")
    (failed,) = home.glob("failed-*")
    (failed / "extra").symlink_to(other)
    assert call(home, "--state", "failed", "--checkpoints", "--yes") == 0
    assert (elsewhere / "checkpoints" / "100" / "arrays").exists()
    assert (other / "status.json").exists()
    assert (home / "linked-run").is_symlink()
    assert (done / "checkpoints").is_symlink()
    assert not failed.exists()


def test_a_folder_that_is_not_clearly_a_run_stays(home):
    odd = home / "odd-folder"
    odd.mkdir()
    (odd / "error.txt").write_text("ValueError: x")  # of something else, perhaps
    assert call(home, "--state", "lost", "--yes") == 0
    assert odd.exists()


def test_what_a_prune_that_was_cut_has_left_goes_with_the_next(home):
    (home / ".pruned-old-run").mkdir()
    (home / ".pruned-old-run" / "probes.jsonl").write_text("")
    assert call(home, "--state", "failed", "--yes") == 0
    assert not (home / ".pruned-old-run").exists()


@pytest.mark.parametrize(("answer", "goes"), [("y", True), ("", False), ("no", False)])
def test_on_a_terminal_it_asks(home, monkeypatch, answer, goes):
    asked = []

    def answers(question):
        asked.append(question)
        return answer

    monkeypatch.setattr("builtins.input", answers)
    monkeypatch.setattr(prune.sys, "stdin", SimpleNamespace(isatty=lambda: True))
    out = io.StringIO()
    out.isatty = lambda: True
    monkeypatch.setattr(prune.sys, "stdout", out)
    assert call(home, "--state", "failed") == 0
    assert len(asked) == 1
    assert asked[0].startswith("remove 1 folder, ")
    assert ("failed" not in left(home)) == goes


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "say what may go"),
        (("--state", "fialed"), "no state 'fialed' to remove; did you mean 'failed'?"),
        (("--state", "running"), "no state 'running' to remove; one of failed, "),
    ],
)
def test_what_cannot_be_meant_is_refused(home, capsys, options, message):
    assert call(home, *options, "--yes") == 2
    assert message in capsys.readouterr().err
    assert len(left(home)) == 5


def test_nothing_to_remove_is_said(home, capsys):
    for folder in home.glob("failed-*"):
        folder.rename(home / ".hidden")
    assert call(home, "--state", "failed", "--yes") == 0
    assert capsys.readouterr().out == "nothing to remove\n"
    with pytest.raises(AnalysisError, match="holds no runs"):
        prune.find(home / "notes", ("failed",))
