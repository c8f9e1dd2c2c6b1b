"""Mistaken commands, as a user types them: one line, a non-zero code, nothing created."""

import concurrent.futures
import resource
import shlex
import subprocess

import pytest

from experiments.compose import CONF
from tests.launching import launch

# Command -> what its line says. The fast ones meet every stage: argparse, Hydra's parser
# and composition, our configs, the checks of a sweep.
FAST = {
    "norm=rmsnrom": "norm=rmsnrom: no such choice; did you mean rmsnorm?",
    "depth=4": "depth: no such key; did you mean model.n_layers?",
    "norm=a,b": "norm=a,b: several values are a sweep; add -m",
    "=4": "=4: not an override; expected key=value",
    "--steps=4": "--steps=4: no such option; overrides are written key=value",
    "model.d_model=130": "model.d_model=130 is not divisible by n_heads=4",
    "data=markov -m model.d_model=64,63": "model.d_model=63 is not divisible by",
}
SLOW = {
    "optimizer.learning_rate=-1": "optimizer.learning_rate: expected a finite number",
    "optimizer.learning_rate=nan": "optimizer.learning_rate: expected a finite number",
    "steps=0": "steps: must be in 1 .. 2**31 - 1, got 0",
    "steps=99999999999": "steps: must be in 1 .. 2**31 - 1, got 99999999999",
    "model.n_layers=two": "model.n_layers: expected an integer, got 'two'",
    "data=bytes data.path=/does/not/exist": "data.path: no such file: /does/not/exist",
    "data=bytes": "data.path: expected the path of a text file, got null",
    "-m norm=rmsnorm,derff": "norm=derff: no such choice; did you mean derf?",
    "norm=[rmsnorm,derf]": "(to run each, write -m norm=rmsnorm,derf)",
    "-m norm=[rmsnorm,derf]": "(to run each, write -m norm=rmsnorm,derf)",
    "+model.depth=4": "model.depth: LanguageModel has no such keyword; did you mean",
    "modle=tiny": "modle: no such key; did you mean model?",
    "norm=derf model.norm.alpha_inti=0.3": "did you mean alpha_init?",
    "norm@model.fnal_norm=derf": "did you mean norm@model.final_norm?",
    "model=residual_mlp data=stdlib": "data: ResidualMLP reads rows of numbers",
    "data=gaussian": "data: LanguageModel reads tokens, Gaussian has none",
    "steps": "steps: not an override; expected key=value",
    "runtime.layuot=map": "runtime.layuot: no such key; did you mean runtime.layout?",
    "experiment=xoing": "experiment=xoing: no such choice; did you mean xiong?",
    "model.ffn.activation=gleu": "(did you mean 'gelu'?)",
    "seed=-1": "seed: must be in 0 .. 2**32 - 1, got -1",
    "seed=range(0,3)": "seed=range(0,3): several values are a sweep; add -m",
    "-m seed=range(0,0)": "seed=range(0,0): no values to try",
    "-m seed=interval(0,3)": "seed=interval(0,3): expected values to try",
    "-m experiment=xiong,quickstart": "expected one experiment",
    "name=../x": "name: must be usable as a folder name, got '../x'",
    "name=${nope}": "Interpolation key 'nope' not found",
    "name=???": "Missing mandatory value: name",
    "~norm": "model.norm: LanguageModel needs it",
    "norm=null": "norm=null: a choice is a name",
    "model.norm=3": "model.norm: expected a part",
    "model.residual=null": "model.residual: expected a part",
    "data=stdlib seq_len=99999999": "seq_len: the train data have",
    "model.vocab_size=10": "model.vocab_size: the data have 256 symbols, got 10",
    "optimizer.clip_norm=0": "optimizer.clip_norm: expected",
    "schedule.warmup_steps=-1": "schedule.warmup_steps: expected",
}


def run_all(commands, base) -> dict[str, tuple[subprocess.CompletedProcess, list]]:
    """Runs each command in an empty folder of its own, two at a time."""

    def run(i, command):
        cwd = base / str(i)
        cwd.mkdir()
        done = launch(*shlex.split(command), cwd=cwd)
        return done, sorted(p.name for p in cwd.iterdir())

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        done = pool.map(run, range(len(commands)), commands)
        return dict(zip(commands, done, strict=True))


@pytest.fixture(scope="module")
def fast(tmp_path_factory):
    return run_all(list(FAST), tmp_path_factory.mktemp("fast"))


@pytest.fixture(scope="module")
def slow(tmp_path_factory):
    return run_all(list(SLOW), tmp_path_factory.mktemp("slow"))


def assert_told(result, message: str) -> None:
    done, created = result
    assert done.stderr.startswith("error: "), done.stderr
    assert message in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stdout == ""
    assert done.returncode == 1
    assert created == []


@pytest.mark.parametrize("command", FAST)
def test_a_mistake_ends_in_one_line_and_nothing_else(fast, command):
    assert_told(fast[command], FAST[command])


@pytest.mark.slow
@pytest.mark.parametrize("command", SLOW)
def test_any_other_mistake_too(slow, command):
    assert_told(slow[command], SLOW[command])


def test_a_traceback_is_there_for_who_asks(tmp_path):
    done = launch("depth=4", cwd=tmp_path, BLOCKLAB_FULL_ERROR="1")
    assert "Traceback" in done.stderr
    assert done.returncode == 1


def test_help_fits_on_a_screen(tmp_path):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = launch("--help", cwd=tmp_path)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) < 40
    groups = {p.name for p in CONF.iterdir() if p.is_dir()} - {"hydra"}
    listed = {line.split(":")[0] for line in done.stdout.splitlines()}
    assert groups <= listed
    examples = done.stdout.partition("Examples")[2].split("\n\n")[0]
    assert examples.count("python launch.py") == 5
    assert done.stderr == ""
    assert list(tmp_path.iterdir()) == []
    # What it costs, whatever else the machine does; 0.9 s on an idle core.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 3
