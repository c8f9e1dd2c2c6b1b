"""The protocol on both sides, with a worker whose times are known."""

import io
import json
import os
import pathlib
import subprocess
import sys

import pytest

from benchmarks import processes, worker
from benchmarks.coordinator import (
    ROOT,
    Peer,
    PeerError,
    Ratio,
    Spec,
    Work,
    clock,
    find,
    rounds,
    worker_command,
)
from benchmarks.points import POINTS
from benchmarks.text import write_text
from benchmarks.worker import Built

FAKE = pathlib.Path(__file__).with_name("fake_worker.py")


@pytest.fixture
def peers():
    started = []

    def start(label, rate, *more):
        peer = Peer(label, [sys.executable, str(FAKE), str(rate), *more])
        started.append(peer)
        peer.wait_ready()
        return peer

    yield start
    for peer in started:
        peer.close()
        assert peer._process.returncode is not None, "no worker outlives its peer"


def test_seconds_are_per_unit_and_ratios_are_taken_within_a_round(peers):
    works = [Work(peers("slow", 0.3), 10), Work(peers("fast", 0.1), 2)]
    assert works[0].peer.info["n_params"] == 7
    samples = rounds(works, 3)
    assert clock(samples["slow"]) == pytest.approx([0.3] * 3)
    assert clock(samples["fast"], "wall") == pytest.approx([0.2] * 3)
    ratio = Ratio.of(clock(samples["slow"]), clock(samples["fast"]))
    assert ratio.median == pytest.approx(3.0)
    assert str(ratio) == "3.00 (3.00 .. 3.00)"


def test_every_peer_works_once_a_round_in_changing_order(peers):
    asked = []
    works = [Work(peers(name, 0.1), 1) for name in "abc"]
    rounds(works, 6, progress=lambda text: asked.append(text.split(": ")[1]))
    turns = [tuple(asked[i : i + 3]) for i in range(0, 18, 3)]
    assert all(sorted(turn) == ["a", "b", "c"] for turn in turns)
    assert len(set(turns)) > 1
    again = []
    rounds(works, 6, progress=lambda text: again.append(text.split(": ")[1]))
    assert again == asked, "the order is the seed's"


def test_one_process_may_have_several_turns(peers):
    peer = peers("one", 0.1)
    samples = rounds([Work(peer, 1), Work(peer, 3, label="again")], 2)
    assert {k: len(v) for k, v in samples.items()} == {"one": 2, "again": 2}
    with pytest.raises(ValueError, match="distinct labels"):
        rounds([Work(peer, 1), Work(peer, 3)], 1)


def test_ratio_is_the_median_of_ratios_not_the_ratio_of_medians():
    # By hand: ratios 1, 4, 1; medians 3 and 3 would give 1 as well, so the extremes tell.
    assert Ratio.of([1, 4, 3], [1, 1, 3]) == Ratio(1, 1, 4)
    assert Ratio.of([1, 2, 9], [1, 4, 3]).median == 1  # of medians: 2 / 3
    with pytest.raises(ValueError):
        Ratio.of([1, 2], [1])


def test_a_dead_worker_leaves_its_last_words(peers):
    peer = peers("mortal", 0.1, "die")
    with pytest.raises(
        PeerError, match="(?s)mortal: ended with code 1.*the last words"
    ):
        peer.ask("run", 1)


def test_an_unknown_command_is_an_error(peers):
    with pytest.raises(PeerError, match="no command jump"):
        peers("a", 0.1).ask("jump", 1)


def test_serving_warms_up_answers_and_refuses():
    done = []

    def work(n):
        done.append(n)
        return {"loss": 0.5}

    answers = io.StringIO()
    worker.serve(
        lambda: Built({"run": work}, {"n_params": 3}),
        io.StringIO("run 4\nrun x\nfly 1\nrun 2\n"),
        answers,
    )
    ready, four, no_count, no_command, two = map(
        json.loads, answers.getvalue().splitlines()
    )
    assert done == [1, 4, 2]
    assert ready["ready"]
    assert ready["n_params"] == 3
    assert four["loss"] == two["loss"] == 0.5
    assert four["wall"] >= 0
    assert four["cpu"] >= 0
    assert "run" in no_count["error"]
    assert "fly" in no_command["error"]


def test_time_is_measured_around_the_work():
    import time

    sample = worker.timed(lambda n: time.sleep(0.02 * n) or {}, 2)
    assert 0.04 <= sample["wall"] < 1
    assert sample["cpu"] < 0.03, "sleeping takes no processor time"


def test_peers_are_chosen_by_what_is_here(tmp_path):
    specs = [
        Spec("plain", "a"),
        Spec("needs two", "b", needs=("torch", "other")),
        Spec("given", "c", checkout="here"),
        Spec("not given", "d", checkout="there"),
        Spec("given, lacking", "e", needs=("other",), checkout="here"),
    ]
    installed = {"torch": object()}
    found, missing = find(specs, {"here": str(tmp_path)}, installed.get)
    assert [s.name for s in found] == ["plain", "given"]
    assert dict(found[1].options)["checkout"] == str(tmp_path)
    assert missing == {
        "needs two": "not installed: other",
        "not given": "needs a checkout: --there PATH",
        "given, lacking": "not installed: other",
    }
    with pytest.raises(ValueError, match="--here: expected a folder"):
        find(specs, {"here": str(tmp_path / "nowhere")}, installed.get)


def test_a_stray_print_is_no_answer_and_the_process_is_pinned(tmp_path):
    """A module put beside the workers prints and tells its cores."""
    package = tmp_path / "benchmarks/workers"
    package.mkdir(parents=True)
    (package / "noisy.py").write_text(
        "import os\n"
        "from benchmarks.worker import Built\n"
        "print('hello from a library')\n"
        "def build(point, text, *, number):\n"
        "    cores = sorted(os.sched_getaffinity(0))\n"
        "    return Built({'run': lambda n: {'n': n}}, {'cores': cores, 'x': number})\n"
    )
    core = min(os.sched_getaffinity(0))
    spec = Spec("noisy", "noisy", (("number", 3),))
    command = worker_command(spec, POINTS["tiny"], tmp_path / "text", core)
    program = (
        "import sys, benchmarks.workers as w; w.__path__.append(sys.argv.pop(1));"
        "from benchmarks.worker import main; main(sys.argv[1:])"
    )
    assert command[1:3] == ["-m", "benchmarks.worker"]
    done = subprocess.run(
        [command[0], "-c", program, str(package), *command[3:]],
        input="run 2\n", capture_output=True, text=True, cwd=ROOT, timeout=60,
    )  # fmt: skip
    ready, answer = map(json.loads, done.stdout.splitlines())
    assert ready["cores"] == [core]
    assert ready["x"] == 3
    assert answer["n"] == 2
    assert "hello from a library" in done.stderr


@pytest.fixture
def ours(tmp_path):
    text = write_text(tmp_path / "text.bin", 100_000)
    spec = Spec("ours", "ours")
    core = min(os.sched_getaffinity(0))
    peer = Peer("ours", worker_command(spec, POINTS["tiny"], text, core))
    peer.wait_ready()
    yield peer
    peer.close()


def test_the_framework_s_own_worker_trains(ours):
    """One round at tiny, as a command does it."""
    assert ours.info["n_params"] == 33_088  # 2 (12 32^2 + 4 32) + 256 32 + 2 32
    assert ours.info["matmul_params"] == POINTS["tiny"].matmul_params
    (sample,) = rounds([Work(ours, 120)], 1)["ours"]
    # From ln 256 = 5.55 nats; after 120 steps bytes of code are below 4.
    assert 1.0 < sample["loss"] < 4.0
    assert 0 < sample["cpu"] < 1


@pytest.mark.slow
def test_the_framework_s_own_worker_probes_and_compiles(ours):
    plain = ours.ask("run", 50)
    probed = ours.ask("probed", 50)
    cadence = ours.ask("cadence", 100)  # the second probe of this worker is warm
    assert probed["loss"] < plain["loss"] < 5.5
    assert cadence["loss"] < probed["loss"]
    assert probed["cpu"] > 1.2 * plain["cpu"], "50 probes are not free"
    assert ours.ask("compile", 1)["cpu"] > 0.2, "compiling from nothing takes a while"


def test_a_whole_process_is_timed_from_outside(tmp_path):
    """One that works for a while, writes a row, and sleeps."""
    program = (
        "import pathlib, sys, time\n"
        "while time.process_time() < 0.3: pass\n"
        "folder = pathlib.Path(sys.argv[1]) / 'a/b'; folder.mkdir(parents=True)\n"
        "(folder / 'rows').write_text('x'); time.sleep(0.2); print('done')\n"
    )
    cores = os.sched_getaffinity(0)
    done = processes.run(
        [sys.executable, "-c", program, str(tmp_path)],
        core=min(os.sched_getaffinity(0)),
        watch=(tmp_path, "*/*/rows"),
    )
    assert done.output == "done\n"
    assert 0.3 <= done.cpu < 1
    assert 0.25 <= done.first_row_cpu <= done.cpu + 0.02
    assert done.first_row + 0.15 < done.wall
    assert 2**20 < done.peak_bytes < 2**30
    assert os.sched_getaffinity(0) == cores, "this process is not pinned with it"
    with pytest.raises(RuntimeError, match="(?s)ended with code 3.*oh no"):
        processes.run([sys.executable, "-c", "print('oh no'); raise SystemExit(3)"])
