import fcntl
import io
import json
import subprocess
import sys
import time

import pytest
from rich.console import Console

from analysis import status as status_module
from analysis import status_table
from analysis.__main__ import main
from analysis.status import RunStatus, SweepStatus, read_status, read_sweep
from analysis.status_table import duration, headline, render, watch


def write_sweep(directory, *identities, **top):
    runs = [
        {"run_id": f"seed={i}-{x}", "identity": x, "overrides": [], "steps": 100}
        for i, x in enumerate(identities)
    ]
    directory.mkdir(exist_ok=True)
    node = {"schema": 1, "runs": runs} | top
    (directory / "sweep.json").write_text(json.dumps(node))


def rows(*steps, rate=2.0, **more):
    """A row per step at `rate` steps a second."""
    return [
        {
            "step": s,
            "loss": 4 - s / 100,
            "seconds": s / rate,
            "tokens_per_second": 512.0,
        }
        | more
        for s in steps
    ]


def set_status(folder, **changes):
    path = folder / "status.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.fixture
def held():
    """Locks a run as its launcher does, until the test ends."""
    files = []

    def hold(folder):
        files.append((folder / ".lock").open("w"))
        fcntl.flock(files[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
        return files[-1]

    yield hold
    for file in files:
        file.close()


def text_of(sweep, limit=40, width=200):
    console = Console(width=width, file=io.StringIO())
    console.print(render(sweep, limit, width))
    return console.file.getvalue()


def test_running_means_that_somebody_holds_the_lock(tmp_path, make_run, held):
    folder = make_run(tmp_path / "x", state="running")
    assert read_status(folder).state == "lost"  # no lock file at all
    (folder / ".lock").write_text("")
    assert read_status(folder).state == "lost"  # left behind
    lock = held(folder)
    assert read_status(folder).state == "running"
    lock.close()
    assert read_status(folder).state == "lost"


def test_the_lock_of_a_process_that_was_killed_is_free(tmp_path, make_run):
    folder = make_run(tmp_path / "x", state="running")
    code = (
        "import fcntl, sys, time\n"
        "f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX)\n"
        "print(flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", code, str(folder / ".lock")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        assert read_status(folder).state == "running"
        child.kill()
    assert read_status(folder).state == "lost"


def test_a_run_that_ends_between_the_looks_is_not_lost(tmp_path, make_run, monkeypatch):
    folder = make_run(tmp_path / "x", state="running")

    def ends(path):
        set_status(path, state="completed")
        return False

    monkeypatch.setattr(status_module, "is_held", ends)
    assert read_status(folder).state == "completed"


@pytest.mark.parametrize("state", ["completed", "diverged", "failed", "preempted"])
def test_other_states_are_as_written_whoever_holds_the_lock(
    tmp_path, make_run, held, state
):
    folder = make_run(tmp_path / "x", state=state)
    held(folder)
    assert read_status(folder).state == state


@pytest.mark.parametrize("damage", ["missing", "empty", "list", "stateless"])
def test_a_status_that_cannot_be_read_is_lost_or_just_beginning(
    tmp_path, make_run, held, damage
):
    folder = make_run(tmp_path / "x")
    path = folder / "status.json"
    if damage == "missing":
        path.unlink()
    else:
        path.write_text({"empty": "", "list": "[1]", "stateless": "{}"}[damage])
    found = read_status(folder)
    assert found.state == "lost"
    assert found.error.startswith("status.json: ")
    held(folder)
    found = read_status(folder)
    assert (found.state, found.error) == ("running", None)


def test_numbers_of_a_running_run_come_from_its_last_rows(tmp_path, make_run, held):
    metrics = rows(10, 20)
    metrics[0]["val_loss"] = 3.5
    metrics += rows(40, loss=2.5)
    folder = make_run(tmp_path / "x", state="running", metrics=metrics)
    set_status(folder, step=30, attempt=3, warning="norms are saturated")
    held(folder)
    run = read_status(folder)
    assert (run.step, run.steps, run.attempt) == (40, 100, 3)
    assert (run.loss, run.val_loss, run.tokens_per_second) == (2.5, 3.5, 512.0)
    assert run.steps_per_second == pytest.approx(2.0)
    assert run.seconds_left == pytest.approx(60 / 2.0)
    assert run.warning == "norms are saturated"


def test_speed_is_that_of_the_tail_and_of_one_row_the_mean(tmp_path, make_run, held):
    slow_then_fast = [{"step": 0, "val_loss": 5.0}, *rows(10, rate=0.1)]
    folder = make_run(tmp_path / "x", state="running", metrics=slow_then_fast)
    held(folder)
    assert read_status(folder).steps_per_second == pytest.approx(0.1)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 30, "loss": 1.0, "seconds": 102.0}) + "\n")
    assert read_status(folder).steps_per_second == pytest.approx(20 / 2)


def test_only_the_end_of_a_long_file_is_read(tmp_path, make_run, held):
    folder = make_run(tmp_path / "x", state="running")
    with (folder / "metrics.jsonl").open("wb") as file:
        file.write(b'{"step": 1, "val_loss": 9.0, "seconds": 1.0}\n')
        file.truncate(1 << 26)  # a hole, which takes no space
        file.seek(0, 2)
        file.write(b"\n" + "".join(json.dumps(r) + "\n" for r in rows(50, 60)).encode())
        file.write(b'{"step": 70, "lo')  # cut by a crash
    set_status(folder, step=50)
    held(folder)
    run = read_status(folder)
    assert (run.step, run.loss, run.val_loss) == (60, 3.4, None)
    assert run.steps_per_second == pytest.approx(2.0)


def test_what_is_not_finite_or_no_number_is_not_known(tmp_path, make_run):
    bad = [{"step": 5, "loss": None, "val_loss": 3.0, "finite": False}]
    folder = make_run(tmp_path / "x", state="diverged", metrics=bad)
    set_status(folder, step="5", error="ValueError: a\n b")
    run = read_status(folder)
    # What the validation loss was before is no result.
    assert (run.step, run.loss, run.val_loss) == (None, None, None)
    assert run.error == "ValueError: a b"


def test_planned_runs_are_those_of_sweep_json_without_a_folder(tmp_path, make_run):
    home = tmp_path / "x"
    make_run(home)
    write_sweep(home, f"{0:012x}", "aaaaaaaaaaaa")
    sweep = read_sweep(home)
    # The hash finds a folder again, whatever its slug.
    assert [(r.run_id[-12:], r.state) for r in sweep.runs] == [
        ("aaaaaaaaaaaa", "planned"),
        (f"{0:012x}", "completed"),
    ]
    assert (sweep.runs[0].step, sweep.runs[0].steps) == (0, 100)


def test_a_sweep_may_have_no_run_yet_and_no_plan(tmp_path, make_run):
    write_sweep(tmp_path / "x", "a" * 12)
    assert read_sweep(tmp_path / "x").counts == {"planned": 1}
    make_run(tmp_path / "y", state="failed")
    assert read_sweep(tmp_path / "y").counts == {"failed": 1}


def test_time_left_is_all_steps_over_all_speed(tmp_path):
    def sweep(*runs):
        return SweepStatus(tmp_path, list(runs))

    def running(step, speed):
        left = (100 - step) / speed
        return RunStatus(
            "a", "running", step, 100, steps_per_second=speed, seconds_left=left
        )

    planned = RunStatus("b", "planned", 0, 100)
    lost = RunStatus("c", "lost", 40, 100)
    done = RunStatus("d", "failed", 10, 100)
    two = (running(50, 2.0), running(0, 3.0))
    assert sweep(*two, planned, lost, done).seconds_left == (50 + 100 + 100 + 60) / 5
    # A run on its own takes its own time.
    assert sweep(running(0, 1.0), running(99, 9.0)).seconds_left == 100
    assert sweep(planned, lost).seconds_left is None
    assert sweep(done).n_done == 1


def test_the_table_shows_what_wants_attention_first(tmp_path, make_run, held):
    home = tmp_path / "norms"
    states = ("completed", "diverged", "failed", "preempted", "running", "running")
    for seed, state in enumerate(states):
        error = "ValueError: [red]alpha[/red]" if state == "failed" else None
        folder = make_run(home, seed=seed, state=state, error=error, metrics=rows(50))
        set_status(folder, step=50)
    held(folder)
    write_sweep(home, *(f"{i:012x}" for i in range(7)))
    sweep = read_sweep(home)
    assert list(sweep.counts.items()) == [
        (s, 1)
        for s in (
            "lost",
            "failed",
            "running",
            "preempted",
            "diverged",
            "planned",
            "completed",
        )
    ]
    text = text_of(sweep)
    assert text.startswith("norms: 3 of 7 runs done: 1 lost, 1 failed, 1 running, ")
    assert "ValueError: [red]alpha[/red]" in text
    assert "50/100" in text
    assert "512" in text
    assert "--all" not in text
    # In 80 columns the error is what stays.
    narrow = text_of(sweep, width=80)
    assert "ValueError: [r" in narrow
    assert "tokens/s" not in narrow


def test_of_many_runs_the_completed_are_only_counted(tmp_path):
    runs = [RunStatus(f"f{i}", "failed") for i in range(3)]
    runs += [RunStatus(f"p{i}", "planned") for i in range(4)]
    runs += [RunStatus(f"c{i}", "completed") for i in range(9)]
    sweep = SweepStatus(tmp_path, runs)
    text = text_of(sweep, limit=5)
    assert [n for n in ("f2", "p1", "p2", "c0") if n in text] == ["f2", "p1"]
    assert "not shown: 2 planned, 9 completed (--all)" in text
    text = text_of(sweep, limit=10)  # room is left, for nothing
    assert "p3" in text
    assert "c0" not in text
    assert "c8" in text_of(sweep, limit=None)
    assert "c8" in text_of(sweep, limit=16)


def test_headline_and_durations(tmp_path):
    run = RunStatus("a", "running", 0, 90, steps_per_second=1.0, seconds_left=90.0)
    assert headline(SweepStatus(tmp_path, [run])).endswith(
        "0 of 1 run done: 1 running; 90 s left"
    )
    planned = SweepStatus(tmp_path, [RunStatus("a", "planned", 0, 9)])
    assert headline(planned).endswith("time left n/a")
    over = SweepStatus(tmp_path, [RunStatus("a", "completed")])
    assert headline(over).endswith("1 completed")
    times = [duration(s) for s in (5, 99, 100, 5900, 6600, 200_000)]
    assert times == ["5 s", "99 s", "2 min", "98 min", "1 h 50 min", "2 d 7 h"]


def test_watch_looks_until_all_are_done(tmp_path, make_run, held, monkeypatch):
    folder = make_run(tmp_path / "x", state="running", metrics=rows(50))
    held(folder)
    looks = []

    def sleep(seconds):
        looks.append(seconds)
        if len(looks) == 2:
            set_status(folder, state="failed", error="OSError: full")

    monkeypatch.setattr(status_table.time, "sleep", sleep)
    console = Console(file=io.StringIO(), width=120)
    watch(str(tmp_path / "x"), console, show_all=False)
    assert len(looks) == 2
    text = console.file.getvalue()
    assert text.count("1 running") == 1  # said when it changed
    assert "OSError: full" in text


def test_interrupting_a_watch_is_no_error(tmp_path, make_run, monkeypatch):
    make_run(tmp_path / "x", state="preempted")

    def interrupt(seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr(status_table.time, "sleep", interrupt)
    assert main(["status", str(tmp_path / "x"), "--watch"]) == 0


def test_json_has_every_number_and_no_nan(tmp_path, make_run, capsys):
    make_run(tmp_path / "x", metrics=rows(100))
    assert main(["status", str(tmp_path / "x"), "--json"]) == 0
    node = json.loads(capsys.readouterr().out)
    assert (node["n_runs"], node["n_done"]) == (1, 1)
    assert node["states"] == {"completed": 1}
    (run,) = node["runs"]
    assert (run["loss"], run["step"], run["seconds_left"]) == (3.0, 100, None)


def test_plain_output_is_not_cut(tmp_path, make_run, capsys):
    error = "ValueError: " + "x" * 90
    folder = make_run(tmp_path / "x", state="failed", error=error)
    assert main(["status", str(tmp_path / "x")]) == 0
    out = capsys.readouterr().out
    assert error in out
    assert folder.name in out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "sweep.json: not JSON"),
        ("[]", "expected schema 1, got None"),
        ('{"schema": 2, "runs": []}', "expected schema 1, got 2"),
        ('{"schema": 1}', "expected a list `runs`, got None"),
        ('{"schema": 1, "runs": [{"run_id": "a"}]}', "runs[0].identity: expected text"),
        ('{"schema": 1, "runs": [7]}', "runs[0].run_id: expected text, got None"),
    ],
)
def test_a_sweep_json_that_cannot_be_understood_is_refused(
    tmp_path, capsys, text, message
):
    (tmp_path / "sweep.json").write_text(text)
    assert main(["status", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_what_is_no_folder_of_runs_is_refused(tmp_path, make_run, capsys):
    folder = make_run(tmp_path / "outputs" / "x")
    for path, message in (
        (tmp_path / "no", "does not exist"),
        (folder, "is one run"),
        (tmp_path / "outputs", f"did you mean {folder.parent}?"),
    ):
        assert main(["status", str(path)]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.slow
def test_a_thousand_runs_are_read_in_a_second_and_a_half(tmp_path, make_run):
    template = make_run(tmp_path / "t", metrics=rows(*range(1, 101)))
    files = {
        name: (template / name).read_text() for name in ("status.json", "metrics.jsonl")
    }
    for i in range(1000):
        folder = tmp_path / "x" / f"seed={i}-{i:012x}"
        folder.mkdir(parents=True)
        for name, text in files.items():
            (folder / name).write_text(text)
    started = time.process_time()  # others may be using the machine
    assert len(read_sweep(tmp_path / "x").runs) == 1000
    assert time.process_time() - started < 1.5
