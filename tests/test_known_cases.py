"""docs/known_cases.md: every row has a test, and the tests that stand nowhere else."""

import ast
import os
import re
import sys
import threading
import types
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from hydra import compose, initialize_config_dir
from hydra.core.utils import JobReturn, JobStatus
from rich.console import Console

from benchmarks.points import POINTS
from benchmarks.text import write_text
from benchmarks.workers import bare
from benchmarks.workers.ours_config import overrides
from blocks.parameters import ROLES, ParamSpec
from blocks.positions.learned import LearnedPositions
from blocks.positions.rope import Rope
from blocks.positions.sinusoidal import SinusoidalPositions
from experiments import api, job
from experiments.checkpoints import Checkpoints
from experiments.compose import CONF
from experiments.environment import describe
from experiments.errors import RunFailed
from experiments.group import executables, load_dataset, plan
from experiments.loggers.guarded import Loggers
from experiments.loggers.wandb import WandB

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "known_cases.md"
TINY = ("model=tiny", "data=markov", "batch_size=4", "seq_len=8")


# -- the page --------------------------------------------------------------------------


def rows(text: str) -> list[list[str]]:
    """Cells of the rows of all tables, without their heads."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    found = [[c.strip() for c in line.strip("|").split("|")] for line in lines]
    return [row for row in found if row[0] != "Report" and set(row[0]) != {"-"}]


ROWS = rows(PAGE.read_text(encoding="utf-8"))


def functions_in(file: Path) -> set[str]:
    """Names of the functions of a file, read and not imported."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return {n.name for n in tree.body if isinstance(n, ast.FunctionDef)}


def test_the_reader_of_tables_sees_what_it_should():
    text = (
        "# a\n\n| Report | b |\n| --- | --- |\n| x/y#1 | `t` |\n\n| Report |\n|---|\n"
    )
    assert rows(text) == [["x/y#1", "`t`"]]
    assert len(ROWS) > 50


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_every_row_names_a_report_and_tests_that_there_are(row):
    report, *words, tests = row
    assert re.fullmatch(r"[\w.-]+/[\w.-]+#\d+|own trial, .+", report)
    assert len(words) == 2
    assert all(words)
    named = re.findall(r"`([^`]+)`", tests)
    assert named, "a row without a test"
    for name in named:
        file, _, function = name.partition("::")
        assert re.fullmatch(r"tests/[\w/]+\.py", file), name
        assert (ROOT / file).is_file(), name
        assert function.startswith("test_"), name
        assert function in functions_in(ROOT / file), name


# -- configs ---------------------------------------------------------------------------


def test_a_config_of_ones_own_chooses_hydras_parts(tmp_path):
    (tmp_path / "mine.yaml").write_text(
        f"defaults: [config, _self_, override hydra/launcher: basic]\n"
        f"hydra: {{searchpath: ['file://{CONF}']}}\n"
    )
    with initialize_config_dir(str(tmp_path), version_base="1.3"):
        config = compose("mine", return_hydra_config=True)
    assert config.hydra.launcher._target_.endswith(".BasicLauncher")
    assert config.model.n_layers > 0


def test_an_experiment_chooses_hydras_parts_and_the_command_line_wins(tmp_path):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text(
        "# @package _global_\n"
        "defaults: [override /hydra/launcher: basic, override /hydra/sweeper: basic]\n"
    )
    asked = [f"hydra.searchpath=[file://{tmp_path}]", "experiment=mine"]
    with initialize_config_dir(str(CONF), version_base="1.3"):
        chosen = compose("config", asked, return_hydra_config=True).hydra
        asked.append("hydra/launcher=batched")
        typed = compose("config", asked, return_hydra_config=True).hydra
    assert chosen.launcher._target_.endswith(".BasicLauncher")
    assert chosen.sweeper._target_.endswith(".BasicSweeper")
    assert typed.launcher._target_.endswith(".BatchedLauncher")
    assert typed.sweeper._target_.endswith(".BasicSweeper")


def test_no_config_needs_a_hydra_that_runs():
    files = sorted(CONF.rglob("*.yaml"))
    assert len(files) > 100
    text = "${hydra:"
    assert [f for f in files if text in f.read_text(encoding="utf-8")] == []


def test_only_what_launch_calls_asks_hydra_about_its_job():
    def asks(file):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        return any(isinstance(n, ast.Name) and n.id == "HydraConfig"
                   for n in ast.walk(tree))  # fmt: skip

    files = [f for name in ("blocks", "experiments", "analysis")
             for f in (ROOT / name).rglob("*.py")]  # fmt: skip
    asking = [f.relative_to(ROOT).as_posix() for f in files if asks(f)]
    assert asking == ["experiments/job.py"]


def test_a_vocabulary_may_be_padded_and_not_cut():
    configs = api.compose([*TINY, "data.vocab_size=8", "model.vocab_size=16"])
    (group,) = plan(configs)
    program = group.programs.program
    assert program.dataset.vocab_size == 8
    assert program.layout.specs["table"].shape[0] == 16


# -- sweeps and processes --------------------------------------------------------------


def test_a_sweep_is_reported_although_a_run_failed(tmp_path, monkeypatch):
    configs = api.compose([*TINY, f"runtime.output_dir={tmp_path}", "seed=0,1"])
    reported, returns = [], []
    for config, status in zip(
        configs, (JobStatus.COMPLETED, JobStatus.FAILED), strict=True
    ):
        returned = JobReturn()
        returned.cfg, returned.status = config, status
        returned.return_value = 1.0
        returns.append(returned)
    monkeypatch.setattr(api, "report", reported.append)
    with pytest.raises(RunFailed, match="1 of 2 runs failed"):
        job.finish_sweep(returns)
    assert reported == [configs]


def test_workers_are_no_forks_of_a_process_with_jax():
    pytest.importorskip("joblib")
    from experiments.dispatch.processes import _Pool

    forks = []
    os.register_at_fork(before=lambda: forks.append(1))
    pool = _Pool(1, [])
    try:
        assert pool._executor.submit(os.getpid).result(60) != os.getpid()
    finally:
        pool.close()
    assert forks == []


def test_a_job_that_slurm_preempts_is_queued_again_once_its_runs_are_saved(monkeypatch):
    pytest.importorskip("submitit")
    from experiments.dispatch import submitit as module
    from experiments.execute import THREAD

    begun, saved = threading.Event(), []

    def work(share, stop):
        def train():
            begun.set()
            stop.wait(60)
            saved.append(share)

        thread = threading.Thread(target=train, name=f"{THREAD}-0")
        thread.start()
        thread.join()
        return []

    monkeypatch.setattr(module, "work", work)
    requeued = module.Requeued()
    thread = threading.Thread(target=requeued, args=("share",))
    thread.start()
    assert begun.wait(60)
    again = requeued.checkpoint("share")
    assert saved == ["share"]
    thread.join()
    assert isinstance(again.function, module.Requeued)
    assert again.args == ("share",)


def test_a_process_keeps_a_limited_number_of_programs_and_data():
    assert executables.cache_parameters()["maxsize"] == 32
    assert load_dataset.cache_parameters()["maxsize"] == 8


def test_flags_of_the_compiler_are_recorded(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_deterministic_ops=true")
    assert describe.__wrapped__()["xla_flags"] == "--xla_gpu_deterministic_ops=true"


# -- training --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "choice", sorted(p.stem for p in (CONF / "optimizer").glob("*.yaml"))
)
def test_what_is_restored_is_what_an_update_takes_and_gives(choice, tmp_path):
    (config,) = api.compose([*TINY, f"optimizer={choice}"])
    optimizer = config.optimizer.build({}, "optimizer")
    specs = {
        role: ParamSpec(role, (2, 3, 4), 1)
        if role == "matrix"
        else ParamSpec(role, (3, 4))
        for role in ROLES
    }
    params = {path: jnp.ones(spec.shape) for path, spec in specs.items()}
    transform = optimizer.transform(specs, lambda count: jnp.float32(1))
    state = transform.init(params)
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=1)
    checkpoints.save(1, state)
    (_, restored), problems = checkpoints.restore(
        jax.eval_shape(transform.init, params)
    )
    assert problems == []
    _, after = jax.eval_shape(transform.update, params, restored, params)
    form = lambda tree: jax.tree.map(lambda x: (x.shape, x.dtype), tree)  # noqa: E731
    assert form(restored) == form(state) == form(after)
    assert not any(x.weak_type for x in jax.tree.leaves(after))


def test_the_gradient_norm_is_logged_before_it_is_clipped(tmp_path):
    members = api.run(
        api.compose(
            [*TINY, "steps=1", "log_every=1", "task.eval_every=null", "optimizer=sgd",
             "optimizer.clip_norm=1e-3,1e3", f"runtime.output_dir={tmp_path}"]
        ),
        console=Console(quiet=True),
    )  # fmt: skip
    norms = [m.directory.rows("metrics.jsonl")[-1]["grad_norm"] for m in members]
    assert norms[0] == norms[1] > 0.01


def test_the_gradient_takes_the_memory_of_plain_jax(tmp_path):
    """Temporaries that XLA plans, of the tiny model and of the same one in plain JAX."""
    point = POINTS["tiny"]
    text = write_text(tmp_path / "text.bin", 50_000)
    (group,) = plan(api.compose([*overrides(point, str(text)), "steps=1"]))
    program, values = group.programs.program, group.members[0].config.traced_values()
    state = jax.eval_shape(program.init, jnp.uint32(0), values, jnp.int32(1))
    shape = (point.batch_size, point.seq_len + 1)
    batch = jax.ShapeDtypeStruct(shape, jnp.int32)

    def temporaries(loss, params, *rest):
        step = jax.jit(jax.value_and_grad(loss)).lower(params, *rest).compile()
        return step.memory_analysis().temp_size_in_bytes

    ours = temporaries(
        lambda p, rest, x: program.layout.merge(p, rest).loss(x)[0],
        state.params, state.rest, batch,
    )  # fmt: skip
    params = jax.eval_shape(lambda: bare.init(point))
    theirs = temporaries(lambda p, x: bare.loss(point, p, x), params, batch)
    assert 0 < ours < 1.1 * theirs


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("kind", ["rope", "sinusoidal", "learned"])
def test_positions_are_all_different_in_half_precision(kind, dtype):
    n, d = 4096, 32
    if kind == "rope":
        x = jnp.ones((1, 1, n, d), dtype)
        y, _ = Rope(d)(x, x)
    else:
        made = {
            "sinusoidal": lambda: SinusoidalPositions(d, rngs=nnx.Rngs(0)),
            "learned": lambda: LearnedPositions(d, max_len=n, rngs=nnx.Rngs(0)),
        }
        y = made[kind]()(jnp.zeros((n, d), dtype), (1, n))
    assert y.dtype == dtype
    vectors = {row.tobytes() for row in jax.device_get(y).reshape(n, d)}
    assert len(vectors) == n


# -- loggers ---------------------------------------------------------------------------


def test_runs_side_by_side_have_a_wandb_run_each(monkeypatch, tmp_path):
    started = {}

    class Run:
        def __init__(self):
            self.steps, self.summary, self.ended = [], {}, []
            self.finish = lambda exit_code: self.ended.append(exit_code)

        def log(self, data, step):
            self.steps.append(step)

    def init(**settings):
        assert settings["reinit"] == "create_new"
        return started.setdefault(settings["id"], Run())

    fake = types.SimpleNamespace(init=init, Settings=dict)
    monkeypatch.setitem(sys.modules, "wandb", fake)
    ids = [f"{i:012x}" for i in range(3)]
    all_loggers = [Loggers({"wandb": WandB()}, pytest.fail) for _ in ids]
    for run_id, loggers in zip(ids, all_loggers, strict=True):
        loggers.open(tmp_path / run_id, run_id, {"name": "a"}, 1, 0)
    for step in (1, 2):
        for i, loggers in enumerate(all_loggers):
            loggers.rows([{"step": 10 * i + step, "loss": 1.0}])
    for loggers, state in zip(
        all_loggers, ("completed", "failed", "completed"), strict=True
    ):
        loggers.close(state)
    assert list(started) == ids
    assert [run.steps for run in started.values()] == [[1, 2], [11, 12], [21, 22]]
    assert [run.ended for run in started.values()] == [[0], [1], [0]]
