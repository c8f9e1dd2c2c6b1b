"""The run directory: one launcher at a time, whole files, no step twice."""

import dataclasses
import errno
import fcntl
import json
import os
import pathlib
import pickle
import signal
import subprocess
import sys
import threading
import time

import pytest

from experiments import api
from experiments.errors import UserError
from experiments.run import BusyError, DiskError, RunDirectory, to_json
from tests.launching import ROOT

ENV = {"layout": "map"}


@pytest.fixture(scope="module")
def composed():
    (config,) = api.compose(["steps=120", "norm=derf", "optimizer.learning_rate=0.1"])
    return config


@pytest.fixture
def config(composed, tmp_path):
    runtime = dataclasses.replace(composed.runtime, output_dir=str(tmp_path))
    return dataclasses.replace(composed, runtime=runtime)


@pytest.fixture
def run(config):
    directory = RunDirectory(config, "f")
    assert directory.open(ENV)
    yield directory
    directory.close()


def read(path) -> dict:
    return json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(name))


# -- what is created -----------------------------------------------------------


def test_looking_creates_nothing(config, tmp_path):
    directory = RunDirectory(config, "f")
    assert directory.status() is None
    assert directory.rows("metrics.jsonl") == []
    assert list(tmp_path.iterdir()) == []


def test_opening_writes_what_the_run_is(run, config, tmp_path):
    assert run.path.parent == tmp_path / "train"
    assert run.path.name == f"steps=120_norm=derf_learning_rate=0.1-{run.identity}"
    assert read(run.path / "config.json") == json.loads(to_json(config.to_config()))
    assert read(run.path / "env.json") == ENV
    asked = (run.path / "overrides.txt").read_text().splitlines()
    assert asked == list(config.overrides)
    status = read(run.path / "status.json")
    assert (status["state"], status["step"], status["steps"]) == ("running", 0, 120)
    assert (status["attempt"], status["error"]) == (1, None)
    assert {p.name for p in run.path.iterdir()} == {
        "config.json", "config.yaml", "overrides.txt", "env.json", "status.json",
        ".lock",
    }  # fmt: skip


def test_a_folder_name_is_what_was_asked_for_and_not_how(compose):
    (config,) = compose("~positions", "norm@model.ffn_norm=dyt", "+tags.x=1", "name=n")
    shared = frozenset(config.overrides[:9])
    slug = RunDirectory(config, "f", shared).run_id.rsplit("-", 1)[0]
    assert slug == "no-positions_ffn_norm=dyt"
    alone = dataclasses.replace(config, overrides=())
    assert RunDirectory(alone, "f").run_id.startswith("run-")


def test_a_long_command_makes_a_short_name(compose):
    (config,) = compose(*(f"+tags.k{i}={'v' * 40}" for i in range(9)))
    many = tuple(f"model.k{i}=/some where/{'v' * 40}" for i in range(9))
    name = RunDirectory(dataclasses.replace(config, overrides=many), "f").run_id
    assert len(name) <= 113
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789=_-./")
    assert "/" not in name


# -- found again ---------------------------------------------------------------


def test_a_run_is_found_again_by_what_it_is(run, config):
    other_words = dataclasses.replace(config, overrides=("norm=derf",))
    again = RunDirectory(other_words, "f")
    assert again.run_id != run.path.name
    assert again.path == run.path
    assert RunDirectory(config, "g").path != run.path


def test_a_run_named_by_someone_else_since_planning_is_found(config):
    mine = RunDirectory(dataclasses.replace(config, overrides=("a=1",)), "f")
    theirs = RunDirectory(config, "f")
    assert mine.path != theirs.path  # both planned, neither there
    theirs.open(ENV)
    theirs.close()
    assert mine.open(ENV)
    assert mine.path == theirs.path
    assert mine.status().attempt == 2
    mine.close()


def test_an_attempt_more_keeps_the_start_and_forgets_the_error(run, config):
    started = run.status().started
    run.update(step=40)
    run.fail(ValueError("first line\nsecond line"))
    assert run.status().state == "failed"
    assert run.status().error == "ValueError: first line"
    assert "second line" in (run.path / "error.txt").read_text()
    run.close()
    again = RunDirectory(config, "f")
    assert again.open(ENV)
    status = again.status()
    assert (status.state, status.attempt, status.step) == ("running", 2, 40)
    assert (status.started, status.error) == (started, None)
    assert not (run.path / "error.txt").exists()
    again.close()


@pytest.mark.parametrize("state", ["completed", "diverged"])
def test_a_run_finished_meanwhile_is_left_alone(config, state):
    planned = RunDirectory(config, "f")
    other = RunDirectory(config, "f")
    other.open(ENV)
    other.update(state=state, step=120)
    other.close()
    before = (other.path / "status.json").read_bytes()
    assert planned.open({"layout": "other"}) is False
    assert (planned.path / "status.json").read_bytes() == before
    assert read(planned.path / "env.json") == ENV
    assert other.open(ENV) is False  # and its lock was let go


@pytest.mark.parametrize("text", ["", "{", "null", "[1]", '{"state": "completed"}'])
def test_a_status_that_is_none_starts_over(run, config, text):
    run.close()
    (run.path / "status.json").write_text(text)
    again = RunDirectory(config, "f")
    assert again.status() is None
    assert again.open(ENV)
    assert again.status().attempt == 1
    again.close()


def test_keys_of_a_later_version_are_ignored(run):
    node = read(run.path / "status.json")
    (run.path / "status.json").write_text(json.dumps({**node, "mood": "fine"}))
    assert run.status().state == "running"


# -- the lock ------------------------------------------------------------------


def test_one_launcher_at_a_time(run, config):
    with pytest.raises(BusyError, match="another launcher is running it") as error:
        RunDirectory(config, "f").open(ENV)
    assert str(run.path) in str(error.value)
    run.close()
    run.close()  # twice is once
    other = RunDirectory(config, "f")
    assert other.open(ENV)
    other.close()


HOLDER = """
import pickle, sys, time
from experiments.run import RunDirectory
directory = RunDirectory(pickle.load(open(sys.argv[1], "rb")), "f")
assert directory.open({})
print("held", flush=True)
time.sleep(600)
"""


def test_the_lock_of_a_killed_process_is_free(config, tmp_path):
    (tmp_path / "config.pickle").write_bytes(pickle.dumps(config))
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "config.pickle")],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    try:
        assert holder.stdout.readline() == "held\n"
        mine = RunDirectory(config, "f")
        assert mine.status().state == "running"
        with pytest.raises(BusyError):
            mine.open(ENV)
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        assert mine.open(ENV)
        assert mine.status().attempt == 2
        mine.close()
    finally:
        holder.kill()
        holder.communicate()


def test_a_file_system_without_locks_is_told_from_another_launcher(config, monkeypatch):
    def refuse(file, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", refuse)
        with pytest.raises(
            UserError, match=r"\.lock: cannot be locked \(No locks"
        ) as e:
            RunDirectory(config, "f").open(ENV)
    assert not isinstance(e.value, BusyError)


def test_a_failed_start_lets_go_of_the_lock(config):
    with pytest.raises(TypeError):
        RunDirectory(config, "f").open({"not json": object()})
    second = RunDirectory(config, "f")
    assert second.open(ENV)
    second.close()


# -- whole files ---------------------------------------------------------------


def test_a_reader_never_sees_half_a_status(run):
    stop = threading.Event()
    seen, broken = [], []

    def watch():
        while not stop.is_set():
            text = (run.path / "status.json").read_text()
            try:
                seen.append(json.loads(text)["step"])
            except ValueError:
                broken.append(text)

    reader = threading.Thread(target=watch)
    reader.start()
    for step in range(500):
        run.update(step=step, error="x" * (step * 37 % 4000))
    stop.set()
    reader.join()
    assert broken == []
    assert len(set(seen)) > 50
    assert seen == sorted(seen)
    assert run.status().step == 499
    assert list(run.path.glob(".*.tmp")) == []


def test_what_a_killed_attempt_was_writing_is_removed(run, config):
    run.close()
    for name in (".status.json.1.tmp", ".metrics.jsonl.99999.tmp"):
        (run.path / name).write_text('{"half')
    again = RunDirectory(config, "f")
    assert again.open(ENV)
    assert list(run.path.glob(".*.tmp")) == []
    again.close()


# -- a status that comes late --------------------------------------------------


@pytest.mark.parametrize("meanwhile", [None, "", '{"state": "comp'])
def test_a_status_that_comes_late_is_waited_for(run, monkeypatch, meanwhile):
    """As over a network: for a moment no file, or the beginning of one."""
    path = run.path / "status.json"
    whole = path.read_text()
    path.unlink()
    if meanwhile is not None:
        path.write_text(meanwhile)
    waited = []

    def sleep(seconds):
        waited.append(seconds)
        if len(waited) == 2:
            path.write_text(whole)

    monkeypatch.setattr(time, "sleep", sleep)
    assert run.status().state == "running"
    assert len(waited) == 2


def test_a_status_that_never_comes_is_given_up(run, monkeypatch):
    waited = []
    monkeypatch.setattr(time, "sleep", waited.append)
    (run.path / "status.json").write_text("{")
    assert run.status() is None
    assert 0 < sum(waited) < 0.5


def test_nobody_waits_for_the_status_of_a_run_that_has_not_begun(config, monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda _: pytest.fail("waited"))
    directory = RunDirectory(config, "f")
    assert directory.status() is None
    assert directory.open(ENV)
    directory.close()


# -- clocks --------------------------------------------------------------------


def test_seconds_do_not_follow_a_clock_that_is_set(run, config, monkeypatch):
    """The clock on the wall jumps an hour back, then a year ahead."""
    wall, ticking = time.time(), time.monotonic()
    for jump in (-3600.0, 3.2e7):
        monkeypatch.setattr(time, "time", lambda at=wall + jump: at)
        ticking += 5.0
        monkeypatch.setattr(time, "monotonic", lambda at=ticking: at)
        run.update(step=1)
        assert run.status().updated == wall + jump
    assert run.status().seconds == pytest.approx(10.0, abs=0.5)

    run.close()
    again = RunDirectory(config, "f")  # another attempt adds to it
    again.open(ENV)
    ticking += 5.0
    monkeypatch.setattr(time, "monotonic", lambda at=ticking: at)
    again.update(step=2)
    assert again.status().seconds == pytest.approx(15.0, abs=0.5)
    again.close()


# -- full disks ----------------------------------------------------------------


class FullDisk:
    """A file that takes ten characters."""

    def __init__(self, file, number: int):
        self._file = file
        self._number = number

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._file.close()

    def write(self, text):
        self._file.write(text[:10])
        self._file.flush()
        raise OSError(self._number, os.strerror(self._number))


@pytest.fixture
def full_disk(monkeypatch):
    """Call it: every file that is written from there on is on a full disk."""
    opened = pathlib.Path.open

    def fill(number: int = errno.ENOSPC):
        def full(path, mode="r", *args, **kwargs):
            file = opened(path, mode, *args, **kwargs)
            return FullDisk(file, number) if mode[0] in "wa" else file

        monkeypatch.setattr(pathlib.Path, "open", full)

    return fill


TWO_ROWS = '{"step": 10}\n{"step": 20}\n'

NO_SPACE = (
    "no space left on the device; what was written before is kept, the same command "
    "continues"
)


def test_a_full_disk_leaves_the_old_files(run, full_disk):
    run.append("metrics.jsonl", [{"step": 10}, {"step": 20}])
    before = {p.name: p.read_bytes() for p in run.path.iterdir()}
    full_disk()
    for name, write in {
        "status.json": lambda: run.update(step=77),
        "metrics.jsonl": lambda: run.rewind("metrics.jsonl", 10),
    }.items():
        with pytest.raises(DiskError) as error:
            write()
        assert str(error.value) == f"{run.path / name}: {NO_SPACE}"
    assert {p.name: p.read_bytes() for p in run.path.iterdir()} == before


@pytest.mark.parametrize("file", ["metrics.jsonl", "probes.jsonl"])
def test_a_full_disk_leaves_no_half_row(run, full_disk, monkeypatch, file):
    run.append("metrics.jsonl", [{"step": 10}, {"step": 20}])
    before = run.rows(file)
    with monkeypatch.context():
        full_disk()
        with pytest.raises(DiskError) as error:
            run.append(file, [{"step": 30}, {"step": 40}])
    monkeypatch.undo()
    assert str(error.value) == f"{run.path / file}: {NO_SPACE}"
    assert (run.path / file).read_bytes() == (TWO_ROWS.encode() if before else b"")
    run.append(file, [{"step": 30}])  # once there is room
    assert run.rows(file) == [*before, {"step": 30}]


def test_a_row_that_does_not_reach_the_disk_is_none(run, monkeypatch):
    run.append("metrics.jsonl", [{"step": 10}, {"step": 20}])

    def fail(_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(DiskError, match=r"cannot write there \(Input/output error\)"):
        run.append("metrics.jsonl", [{"step": 30}])
    assert (run.path / "metrics.jsonl").read_text() == TWO_ROWS


def test_a_resume_that_drops_no_row_needs_no_room(run, full_disk):
    run.append("metrics.jsonl", [{"step": 10}, {"step": 20}])
    full_disk()
    assert len(run.rewind("metrics.jsonl", 20)) == 2


def test_failing_on_a_full_disk_does_not_raise(run, full_disk, monkeypatch):
    before = (run.path / "status.json").read_bytes()
    with monkeypatch.context():
        full_disk()
        run.fail(ValueError("some fault"))
    assert (run.path / "status.json").read_bytes() == before
    assert not (run.path / "error.txt").exists()
    monkeypatch.undo()
    run.fail(DiskError(run.path / "metrics.jsonl", OSError(errno.ENOSPC, "full")))
    assert run.status().state == "failed"
    assert run.status().error == f"{run.path / 'metrics.jsonl'}: {NO_SPACE}"


def test_where_there_is_room_for_the_status_only_it_is_written(run, monkeypatch):
    replaced = pathlib.Path.replace

    def refuse_the_trace(path, target):
        if target.name == "error.txt":
            raise OSError(errno.ENOSPC, "No space left on device")
        return replaced(path, target)

    monkeypatch.setattr(pathlib.Path, "replace", refuse_the_trace)
    run.fail(ValueError("some fault"))
    assert run.status().error == "ValueError: some fault"
    assert list(run.path.glob(".*.tmp")) == []


@pytest.mark.parametrize(
    "number, words",
    [
        (errno.EDQUOT, "the quota on the device is used up"),
        (errno.EROFS, "cannot write there (Read-only file system)"),
        (errno.EACCES, "cannot write there (Permission denied)"),
    ],
)
def test_other_faults_of_the_disk_are_told_as_clearly(run, full_disk, number, words):
    full_disk(number)
    with pytest.raises(DiskError) as error:
        run.update(step=3)
    assert str(error.value).startswith(f"{run.path / 'status.json'}: {words}; what was")


def test_a_folder_that_cannot_be_written_is_named(compose, tmp_path):
    (tmp_path / "file").write_text("in the way")
    (config,) = compose(f"runtime.output_dir={tmp_path}/file")
    with pytest.raises(UserError) as error:
        RunDirectory(config, "f").open(ENV)
    assert str(error.value).startswith(f"{tmp_path}/file/train/")
    assert "cannot write there (Not a directory)" in str(error.value)


# -- rows ----------------------------------------------------------------------


def test_what_is_not_finite_is_null(run):
    nan, inf = float("nan"), float("inf")
    rows = [{"step": 1, "loss": nan, "finite": False}, {"values": [inf, (-inf, 1.5)]}]
    run.append("metrics.jsonl", rows)
    lines = (run.path / "metrics.jsonl").read_text().splitlines()
    assert lines == [
        '{"step": 1, "loss": null, "finite": false}',
        '{"values": [null, [null, 1.5]], "finite": false}',
    ]


@pytest.fixture
def ten_rows(run):
    run.append("metrics.jsonl", [{"step": 10 * i, "loss": 0.5} for i in range(10)])
    return run


def test_rows_are_appended_in_order(ten_rows):
    ten_rows.append("metrics.jsonl", [])
    ten_rows.append("metrics.jsonl", [{"step": 100}])
    steps = [row["step"] for row in ten_rows.rows("metrics.jsonl")]
    assert steps == [*range(0, 101, 10)]


@pytest.mark.parametrize(
    "step, kept", [(90, 10), (89, 9), (45, 5), (0, 1), (-1, 0), (None, 0), (500, 10)]
)
def test_rewinding_keeps_the_rows_up_to_a_step(ten_rows, step, kept):
    rows = ten_rows.rewind("metrics.jsonl", step)
    assert [row["step"] for row in rows] == [10 * i for i in range(kept)]
    assert ten_rows.rows("metrics.jsonl") == rows
    assert (ten_rows.path / "metrics.jsonl").read_text().count("\n") == kept


@pytest.mark.parametrize(
    "tail",
    [
        b'{"step": 100, "lo',
        b'{"step": 100}',  # whole, but for its newline
        b"\0\0\0\0\n",
        b"\xff\xfe\xff\n",
        b'{"step": 100, "loss": \xc3\n{"step": 110}\n',
        b'{"loss": 0.5}\n',
        b'{"step": null}\n',
        b"100\n",
    ],
)
def test_a_line_cut_by_a_crash_is_dropped_with_what_follows(ten_rows, tail):
    path = ten_rows.path / "metrics.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + tail)
    assert len(ten_rows.rewind("metrics.jsonl", 1000)) == 10
    assert path.read_bytes() == whole


def test_reading_passes_over_a_cut_line(ten_rows):
    path = ten_rows.path / "metrics.jsonl"
    path.write_bytes(path.read_bytes() + b'\xff\n{"step": 10')
    assert len(ten_rows.rows("metrics.jsonl")) == 10


def test_rewinding_a_file_that_is_not_there_makes_none(run):
    assert run.rewind("probes.jsonl", 10) == []
    assert not (run.path / "probes.jsonl").exists()
