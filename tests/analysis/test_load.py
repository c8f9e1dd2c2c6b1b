import json
import os
import shutil
import time

import polars as pl
import pytest

from analysis import load as load_module
from analysis.errors import AnalysisError
from analysis.load import load


def age(directory, seconds=100):
    """Makes every file older, as those of a finished sweep are."""
    for path in directory.rglob("*"):
        if path.is_file() and ".cache" not in path.parts:
            stat = path.stat()
            os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns - seconds * 10**9))


@pytest.fixture
def counted(monkeypatch):
    """Counts how often a run is parsed: zero means that the cache was used."""
    calls = []

    def read(folder):
        calls.append(folder.name)
        return original(folder)

    original = load_module.read_run
    monkeypatch.setattr(load_module, "read_run", read)
    return calls


def test_frames_hold_what_the_files_hold(tmp_path, make_run):
    folder = make_run(
        tmp_path / "x",
        seed=7,
        norm="derf",
        metrics=[
            {"step": 0, "val_loss": 5.5, "tokens": 0},
            {"step": 10, "loss": 4, "grad_norm": 1.5, "learning_rate": 1e-3},
        ],
        probes=[
            {"step": 0, "quantity": "grad_norm/total", "axis": "scalar", "values": [2]},
            {"step": 0, "quantity": "q", "axis": "layer", "values": [1, 0.5, None]},
        ],
        references={"bigram": 2.4},
        choices={"norm@model.ffn_norm": None},
        tags={"expected": [{"id": "A"}]},
        diverged_step=None,
    )
    got = load(tmp_path / "x")
    (run,) = got.runs.to_dicts()
    assert run["run_id"] == folder.name
    assert run["path"] == str(folder)
    assert (run["family"], run["variant"]) == ("train/LanguageModel", "derf · pre")
    assert (run["state"], run["seed"], run["n_layers"]) == ("completed", 7, 4)
    assert run["reference.bigram"] == 2.4
    assert (run["choice.norm"], run["choice.norm@model.ffn_norm"]) == ("derf", None)
    assert run["config.optimizer.learning_rate"] == 0.001
    assert run["config.optimizer.betas"] == "[0.9, 0.95]"
    assert json.loads(run["config.tags.expected"]) == [{"id": "A"}]
    assert run["data_fingerprint"] == "f00d" * 8
    assert run["problems"] is None

    assert got.metrics.select("step", "loss", "val_loss").rows() == [
        (0, None, 5.5),
        (10, 4.0, None),
    ]
    assert got.metrics.schema["loss"] == pl.Float64
    assert got.probes.schema["values"] == pl.List(pl.Float64)
    assert got.probes["values"].to_list() == [[2.0], [1.0, 0.5, None]]


def test_mixed_kinds_of_a_config_value_become_text_and_numbers_stay(tmp_path, make_run):
    for value in (1, "auto", None, 0.5):
        make_run(tmp_path / "x", config_extra={"mixed": value, "count": 3})
    runs = load(tmp_path / "x").runs
    assert runs["config.mixed"].to_list() == ["1", "auto", None, "0.5"]
    assert runs.schema["config.count"] == pl.Int64


def test_only_the_cut_last_line_is_lost(tmp_path, make_run):
    rows = [{"step": s, "loss": 1.0} for s in (1, 2, 3)]
    folder = make_run(tmp_path / "x", state="running", metrics=rows)
    with (folder / "metrics.jsonl").open("ab") as file:
        file.write('{"step": 4, "loss": 0.9, "note": "é'.encode()[:-1])
    got = load(tmp_path / "x")
    assert got.metrics["step"].to_list() == [1, 2, 3]
    assert got.runs["problems"][0] == "metrics.jsonl: line 4 dropped (cut)"


def test_a_broken_line_in_the_middle_is_named_and_the_rest_read(tmp_path, make_run):
    folder = make_run(tmp_path / "x")
    lines = ['{"step": 1, "loss": 1.0}', "garbage", "[1]", '{"loss": 2}', '{"step": 5}']
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    got = load(tmp_path / "x")
    assert got.metrics["step"].to_list() == [1, 5]
    for line, fault in ((2, "not JSON"), (3, "not a mapping"), (4, "no integer step")):
        assert f"line {line} dropped ({fault})" in got.runs["problems"][0]


def test_values_that_are_not_finite_are_null_however_they_were_written(
    tmp_path, make_run
):
    folder = make_run(tmp_path / "x", state="diverged", diverged_step=2)
    (folder / "metrics.jsonl").write_text(
        '{"step": 1, "loss": null, "finite": false}\n{"step": 2, "loss": NaN}\n'
    )
    (folder / "probes.jsonl").write_text(
        '{"step": 0, "quantity": "q", "axis": "layer", "values": [1.0, Infinity]}\n'
    )
    got = load(tmp_path / "x")
    assert got.metrics["loss"].to_list() == [None, None]
    assert got.metrics["finite"].to_list() == [False, None]
    assert got.probes["values"].to_list() == [[1.0, None]]
    assert got.runs["diverged_step"].to_list() == [2]


def test_a_step_written_twice_counts_once_and_last(tmp_path, make_run):
    make_run(
        tmp_path / "x",
        metrics=[{"step": 1, "loss": 9.0}, {"step": 1, "loss": 1.0}],
        probes=[
            {"step": 0, "quantity": "q", "axis": "scalar", "values": [v]}
            for v in (9, 1)
        ],
    )
    got = load(tmp_path / "x")
    assert got.metrics["loss"].to_list() == [1.0]
    assert got.probes["values"].to_list() == [[1.0]]


def test_runs_in_every_state_of_disrepair_are_still_rows(tmp_path, make_run):
    home = tmp_path / "x"
    make_run(home, metrics=[{"step": 1, "loss": 1.0}])
    early = make_run(home, seed=1, state="failed")
    for name in ("env.json", "metrics.jsonl", "probes.jsonl", "status.json"):
        (early / name).unlink()
    (early / "error.txt").write_text("Traceback ...\n  file\nValueError: bad alpha\n\n")
    empty = make_run(home, seed=2)
    for name in ("config.json", "status.json", "env.json", "metrics.jsonl"):
        (empty / name).write_text("")
    listed = make_run(home, seed=3)
    (listed / "config.json").write_text("[1, 2]")
    (home / "notes").mkdir()
    (home / "notes" / "readme.txt").write_text("not a run")
    (home / "stray.json").write_text("{}")

    runs = load(home).runs
    assert runs["run_id"].to_list() == sorted(
        p.name for p in home.iterdir() if "-" in p.name
    )
    by_id = {row["run_id"]: row for row in runs.to_dicts()}
    assert by_id[early.name]["error"] == "ValueError: bad alpha"
    assert by_id[early.name]["state"] == "unknown"
    assert "status.json: missing" in by_id[early.name]["problems"]
    # Its choices are known from the sibling with the same config.
    assert by_id[early.name]["variant"] == "layernorm · pre"
    assert by_id[empty.name]["family"] == "unknown/unknown"
    assert "config.json: unreadable" in by_id[empty.name]["problems"]
    assert "a mapping was expected, got list" in by_id[listed.name]["problems"]


def test_folder_without_any_rows_gives_empty_frames_with_columns(tmp_path, make_run):
    make_run(tmp_path / "x", state="running")
    got = load(tmp_path / "x")
    assert got.metrics.height == got.probes.height == 0
    assert {"run_id", "step", "loss", "val_loss"} <= set(got.metrics.columns)
    assert got.probes.schema["values"] == pl.List(pl.Float64)


def test_what_is_no_folder_of_runs_is_refused_and_left_alone(tmp_path, make_run):
    missing = tmp_path / "missing"
    with pytest.raises(AnalysisError, match="does not exist"):
        load(missing)
    assert not missing.exists()
    (tmp_path / "empty").mkdir()
    with pytest.raises(AnalysisError, match="holds no runs; expected"):
        load(tmp_path / "empty")
    assert list((tmp_path / "empty").iterdir()) == []
    folder = make_run(tmp_path / "outputs" / "x")
    with pytest.raises(AnalysisError, match=f"did you mean {folder.parent}"):
        load(tmp_path / "outputs")
    with pytest.raises(AnalysisError, match="is one run"):
        load(folder)
    with pytest.raises(AnalysisError, match="is not a folder"):
        load(folder / "config.json")


def test_second_load_reads_the_cache_and_equals_the_first(
    tmp_path, make_run, make_losses, counted
):
    for seed in (0, 1):
        make_run(tmp_path / "x", seed=seed, metrics=make_losses(5, 2, seed))
    age(tmp_path)
    first = load(tmp_path / "x")
    assert len(counted) == 2
    second = load(tmp_path / "x")
    assert len(counted) == 2
    for name in ("runs", "metrics", "probes"):
        assert getattr(first, name).equals(getattr(second, name))
    shutil.move(tmp_path / "x", tmp_path / "y")
    moved = load(tmp_path / "y")
    assert len(counted) == 2
    assert moved.runs["path"][0].startswith(str(tmp_path / "y"))


def test_cache_notices_new_rows_new_runs_and_replaced_files(
    tmp_path, make_run, counted
):
    home = tmp_path / "x"
    folder = make_run(home, metrics=[{"step": 1, "loss": 1.0}])
    age(home)
    load(home)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "loss": 0.5}\n')
    age(folder)
    assert load(home).metrics.height == 2
    make_run(home, seed=1)
    age(home)
    assert load(home).runs.height == 2
    # Same size and same time, as an atomic replacement within a clock tick has.
    status = folder / "status.json"
    stat, text = status.stat(), status.read_text()
    (folder / "new").write_text(text.replace("60.5", "61.5"))
    os.replace(folder / "new", status)
    os.utime(status, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert 61.5 in load(home).runs["seconds"].to_list()
    shutil.rmtree(folder)
    assert load(home).runs.height == 1
    entries = [p for p in (home / ".cache").iterdir() if len(p.name) == 32]
    assert len(entries) == 1


def test_the_cache_is_judged_by_stat_alone(tmp_path, make_run, monkeypatch):
    home = tmp_path / "x"
    folder = make_run(home, metrics=[{"step": 1, "loss": 1.0}])
    age(home)
    first = load(home)
    for name in ("config.json", "metrics.jsonl", "env.json"):
        path = folder / name
        stat = path.stat()
        path.write_bytes(b"?" * stat.st_size)  # the same inode, size and time
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert load(home).metrics.equals(first.metrics)
    (folder / "env.json").unlink()
    assert load(home).metrics.is_empty()


def test_files_that_just_changed_are_not_cached(tmp_path, make_run):
    make_run(tmp_path / "x")
    load(tmp_path / "x")
    assert not (tmp_path / "x" / ".cache").exists()


@pytest.mark.parametrize("damage", ["flip", "cut", "digests", "missing", "swap"])
def test_broken_cache_is_rebuilt(tmp_path, make_run, counted, damage):
    home = tmp_path / "x"
    make_run(home, metrics=[{"step": 1, "loss": 1.0}])
    age(home)
    load(home)
    (entry,) = (home / ".cache").iterdir()
    path = entry / "metrics.parquet"
    data = path.read_bytes()
    if damage == "flip":
        path.write_bytes(data[:50] + bytes([data[50] ^ 1]) + data[51:])
    elif damage == "cut":
        path.write_bytes(data[:40])
    elif damage == "digests":
        (entry / "digests.json").write_text("[")
    elif damage == "missing":
        path.unlink()
    else:
        path.write_bytes((entry / "runs.parquet").read_bytes())
    calls = len(counted)
    assert load(home).metrics["loss"].to_list() == [1.0]
    assert len(counted) == calls + 1
    load(home)
    assert len(counted) == calls + 1  # the rebuilt entry is good


def test_cache_that_cannot_be_written_costs_only_time(tmp_path, make_run):
    make_run(tmp_path / "x")
    age(tmp_path)
    (tmp_path / "x" / ".cache").write_text("a file in the way")
    assert load(tmp_path / "x").runs.height == 1


@pytest.mark.slow
def test_a_thousand_runs_load_in_three_seconds_and_from_the_cache_at_once(
    tmp_path, make_run, make_losses
):
    """Seconds of the processor: others may be using the machine."""
    home = tmp_path / "x"
    template = make_run(
        tmp_path / "t", metrics=make_losses(5, 2, 0, steps=100, every=1)
    )
    texts = {path.name: path.read_text() for path in template.iterdir()}
    config = json.loads(texts["config.json"])
    for i in range(1000):
        config["seed"], config["optimizer"]["learning_rate"] = i % 10, 1e-4 * (i // 10)
        folder = home / f"seed={i}-{i:012x}"
        folder.mkdir(parents=True)
        for name, text in (texts | {"config.json": json.dumps(config)}).items():
            (folder / name).write_text(text)
    age(home)
    for limit in (3.0, 0.3):
        started = time.process_time()
        table = load(home)
        assert time.process_time() - started < limit
        assert (table.runs.height, table.metrics.height) == (1000, 101_000)
