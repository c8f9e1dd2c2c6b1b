"""The run directory: one launcher at a time, whole files, no step twice."""

import dataclasses
import errno
import json
import pathlib
import pickle
import signal
import subprocess
import sys
import threading

import pytest

from experiments import api
from experiments.errors import UserError
from experiments.run import BusyError, RunDirectory, to_json
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


class FullDisk:
    """A file that takes ten characters."""

    def __init__(self, file):
        self._file = file

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._file.close()

    def write(self, text):
        self._file.write(text[:10])
        self._file.flush()
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture
def full_disk(monkeypatch):
    opened = pathlib.Path.open
    written = "wa"

    def full(path, mode="r", *args, **kwargs):
        file = opened(path, mode, *args, **kwargs)
        return FullDisk(file) if mode[0] in written else file

    return lambda: monkeypatch.setattr(pathlib.Path, "open", full)


def test_a_full_disk_leaves_the_old_file(run, full_disk):
    before = (run.path / "status.json").read_bytes()
    run.append("metrics.jsonl", [{"step": 10}, {"step": 20}])
    full_disk()
    with pytest.raises(OSError, match="No space left"):
        run.update(step=77)
    with pytest.raises(OSError, match="No space left"):
        run.rewind("metrics.jsonl", 10)
    assert (run.path / "status.json").read_bytes() == before
    assert (run.path / "metrics.jsonl").read_text() == '{"step": 10}\n{"step": 20}\n'
    assert list(run.path.glob(".*.tmp")) == []


def test_a_row_cut_by_a_full_disk_is_dropped_on_resume(run, full_disk, monkeypatch):
    run.append("metrics.jsonl", [{"step": 10, "loss": 1.0}])
    with monkeypatch.context():
        full_disk()
        with pytest.raises(OSError, match="No space left"):
            run.append("metrics.jsonl", [{"step": 20, "loss": 1.0}])
    monkeypatch.undo()
    assert run.rewind("metrics.jsonl", 20) == [{"step": 10, "loss": 1.0}]
    run.append("metrics.jsonl", [{"step": 20, "loss": 2.0}])
    assert [row["step"] for row in run.rows("metrics.jsonl")] == [10, 20]


def test_a_folder_that_cannot_be_written_is_named(compose, tmp_path):
    (tmp_path / "file").write_text("in the way")
    (config,) = compose(f"runtime.output_dir={tmp_path}/file")
    with pytest.raises(UserError) as error:
        RunDirectory(config, "f").open(ENV)
    assert str(error.value).startswith(f"{tmp_path}/file/train/")
    assert "cannot write there" in str(error.value)


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
