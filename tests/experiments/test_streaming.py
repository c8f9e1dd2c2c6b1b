"""Data too large for the device: the same batches, made on the host, a block at a time."""

import json
import subprocess
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import api
from experiments.data import tokens
from experiments.data.shards import write_shard
from experiments.data.tokens import TokenStream
from experiments.execute import execute
from experiments.execution import Executables, choose_layout
from experiments.group import executables, load_dataset, plan
from experiments.members import stack_inputs
from experiments.program import CHUNK
from experiments.replay import locate
from tests.launching import ROOT, assert_same_results, rows, runs_below, status

N_IDS = 300


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """Three short files, so that many windows begin in one and end in the next."""
    folder = tmp_path_factory.mktemp("tokens")
    rng = np.random.default_rng(0)
    for i, n in enumerate((700, 41, 900)):
        ids = rng.integers(0, N_IDS, n).astype("<u2")
        write_shard(folder / f"train_{i}.bin", ids)
    write_shard(folder / "val.bin", rng.integers(0, N_IDS, 400).astype("<u2"))
    return folder


@pytest.fixture
def compose(shards, tmp_path, compose):
    """Runs on these files, in a folder of their own below tmp_path."""

    def composed(folder, *overrides, **keywords):
        return compose(
            "data=tokens", f"data.paths={shards}/train_*.bin",
            f"data.validation_paths={shards}/val.bin", f"data.vocab_size={N_IDS}",
            "batch_size=2", "seq_len=24",
            f"runtime.output_dir={tmp_path / folder}", *overrides, **keywords,
        )  # fmt: skip

    return composed


@pytest.fixture
def keep(monkeypatch):
    """Sets how many bytes may be on the device."""

    def keep(n_bytes):
        monkeypatch.setattr(tokens, "RESIDENT_BYTES", n_bytes)
        load_dataset.cache_clear()
        executables.cache_clear()

    yield keep
    monkeypatch.undo()
    load_dataset.cache_clear()
    executables.cache_clear()


@pytest.fixture
def both_ways(keep, compose, tmp_path):
    """Runs something with the data on the device, and streamed; the two folders."""

    def both_ways(*overrides, **keywords):
        keep(2**30)
        api.run(compose("resident", *overrides, **keywords))
        keep(0)
        api.run(compose("streamed", *overrides, **keywords))
        return tmp_path / "resident/train", tmp_path / "streamed/train"

    return both_ways


# -- the same numbers ------------------------------------------------------------


@pytest.mark.parametrize(
    "overrides",
    [
        ("runtime.layout=threads", "task.probe_every=40"),
        pytest.param(
            ("runtime.layout=map", "model.dtype=float64", "steps=60"),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ("runtime.layout=vmap", "accumulate=2", "steps=60"), marks=pytest.mark.slow
        ),
    ],
)
def test_streamed_runs_have_the_bits_of_those_with_data_on_the_device(
    both_ways, overrides
):
    resident, streamed = both_ways("seed=0,1,2", *overrides)
    assert_same_results(resident, streamed)
    assert len(runs_below(streamed)) == 3
    losses = {json.dumps(rows(run)) for run in runs_below(streamed).values()}
    assert len(losses) == 3, "each seed has batches of its own"


@pytest.mark.slow
@pytest.mark.parametrize("task", ["depth", "propagate"])
def test_tasks_that_take_no_step_too(both_ways, task):
    resident, streamed = both_ways("seed=0,1", task=task)
    assert len(runs_below(streamed)) == 2
    for identity, run in runs_below(resident).items():
        twin = runs_below(streamed)[identity]
        assert rows(run) == rows(twin)
        assert rows(run, "probes.jsonl") == rows(twin, "probes.jsonl")


class StopAt(threading.Event):
    """Is set once a member has got to a step."""

    def __init__(self, member, step):
        super().__init__()
        self.member, self.step = member, step

    def is_set(self):
        return self.member.step >= self.step


def test_a_run_that_was_stopped_continues_bit_for_bit(keep, compose, tmp_path):
    keep(0)
    long = ("seed=0,1", "steps=180", "task.eval_every=60", "runtime.layout=map")
    api.run(compose("whole", *long))
    (group,) = plan(compose("cut", *long))
    execute([group], StopAt(group.members[0], 60))
    runs = runs_below(tmp_path / "cut/train").values()
    assert [status(run)["state"] for run in runs] == ["preempted"] * 2
    assert {status(run)["step"] for run in runs} == {60}, "amid a block"
    api.run(compose("cut", *long))
    assert_same_results(tmp_path / "whole/train", tmp_path / "cut/train")


@pytest.mark.slow
def test_the_way_to_a_step_that_diverged_keeps_to_the_blocks(keep, compose):
    """From the checkpoint of step 40 it leads over the end of one."""
    keep(0)
    (member,) = api.run(compose("x", "seed=0", "steps=40"))
    (group,) = plan(compose("x", "seed=0", "steps=40"))
    member.diverged_step = 75
    (like,) = group.programs.abstract(None, ["state"])
    assert locate(group.programs, member, like)["kind"] == "none"


# -- blocks ------------------------------------------------------------------------


@pytest.fixture
def streamed(keep, compose):
    keep(0)
    (group,) = plan(compose("blocks", "seed=3,4", "runtime.layout=map"))
    return group


def test_batch_i_is_that_of_the_source_for_its_key(streamed, keep):
    programs = streamed.programs
    seeds, _, _ = stack_inputs(streamed.members, programs.program.dtype)
    block = programs.blocks.training(seeds, 60, 5, 120)["batches"]
    assert block.shape == (2, CHUNK, 2, 25)
    keep(2**30)
    source = programs.program.source
    arrays = source.load().arrays
    for m, seed in enumerate((3, 4)):
        for i in (50, 60, 99):
            key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), 1), i)
            batch = source.batch(arrays, key, split="train", batch_size=2, seq_len=24)
            np.testing.assert_array_equal(block[m, i - 50], batch)


def test_a_block_is_read_once_and_the_next_one_ahead(streamed, monkeypatch):
    blocks = streamed.programs.blocks
    made = []
    make = blocks.make
    monkeypatch.setattr(
        blocks, "make", lambda *a: made.append(a[2:]) or make(*a), raising=True
    )
    seeds = jnp.asarray([7], jnp.uint32)
    first = blocks.training(seeds, 0, 30, 120)
    assert blocks.training(seeds, 30, 20, 120) is first
    blocks._reader.submit(int).result()  # the one thread has done what it was given
    assert made == [(0,), (50,)]
    second = blocks.training(seeds, 50, 50, 120)
    blocks.training(seeds, 100, 20, 120)
    assert made == [(0,), (50,), (100,)], "nothing beyond the end"
    assert second is not first
    assert blocks._asking.blocks == {}, "at the end all are let go"


def test_a_call_over_the_end_of_a_block_is_refused(streamed):
    seeds = jnp.asarray([7], jnp.uint32)
    with pytest.raises(ValueError, match="steps 41 to 60 are not in one chunk of 50"):
        streamed.programs.blocks.training(seeds, 40, 20, 120)


# -- failures ----------------------------------------------------------------------


def test_an_id_beyond_the_vocabulary_fails_the_run_and_is_named(keep, shards, compose):
    keep(0)
    configs = compose("bad", "seed=0", "steps=10")
    (group,) = plan(configs)
    assert isinstance(group.programs.program.dataset.stream, TokenStream)
    file = shards / "train_1.bin"
    before = file.read_bytes()
    write_shard(file, np.full(41, N_IDS, "<u2"))
    try:
        (member,) = api.run(configs)
    finally:
        file.write_bytes(before)
    assert member.state == "failed"
    assert "train_1.bin: expected ids below 300, token" in member.error


def test_an_executable_per_program_has_no_blocks_where_data_are_resident(compose, keep):
    keep(2**30)
    (group,) = plan(compose("resident", "seed=0"))
    made = Executables(group.programs.program, choose_layout("auto", None))
    assert made.blocks is None
    assert made.per_member(("state", "data", "count")) == (True, False, False)


# -- size --------------------------------------------------------------------------

TRAIN_ON_50_GB = """
import json, pathlib, sys, time
from experiments import api
from experiments.group import load_dataset
configs = api.compose(sys.argv[1:])
started = time.process_time()
data = load_dataset(configs[0].data)
seconds = time.process_time() - started
(member,) = api.run(configs)
# Not ru_maxrss: over a fork it keeps what the process that started this one had.
lines = pathlib.Path("/proc/self/status").read_text().splitlines()
(peak,) = [int(line.split()[1]) for line in lines if line.startswith("VmHWM")]  # KiB
print(json.dumps([data.train_tokens, seconds, member.state, peak / 2**20]))
"""


@pytest.mark.slow
def test_fifty_gigabytes_open_at_once_and_memory_stays_small(tmp_path):
    """A sparse file: it says 25 billion tokens and takes no room on the disk."""
    file = tmp_path / "train.bin"
    with file.open("wb") as opened:
        opened.truncate(50 * 10**9)
    done = subprocess.run(
        [
            sys.executable, "-c", TRAIN_ON_50_GB, "data=tokens", f"data.paths={file}",
            "data.dtype=uint16", "data.vocab_size=64", "model=tiny",
            "steps=120", "batch_size=8", "seq_len=64",
            "task.eval_batches=2", f"runtime.output_dir={tmp_path}",
        ],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    n_tokens, seconds, state, peak_gib = json.loads(done.stdout.splitlines()[-1])
    assert n_tokens == 23_750_000_000
    assert seconds < 1
    assert state == "completed"
    assert peak_gib < 1
