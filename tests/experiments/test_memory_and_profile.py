"""Groups that do not fit are cut; programs are explained; steps are traced."""

import io

import jax
import jax.numpy as jnp
import pytest
from rich.console import Console

from experiments import api
from experiments.config import parse_span
from experiments.flops import matmul_flops
from experiments.group import plan


def text_of(configs):
    written = io.StringIO()
    members = api.run(configs, console=Console(file=written, width=200))
    return written.getvalue(), members


def test_a_group_too_large_for_the_memory_is_cut_and_says_so(compose):
    overrides = ("seed=range(0,6)", "runtime.layout=vmap", "steps=20")
    (group,) = plan(compose(*overrides))
    functions = group.task.functions
    whole = group.programs.memory(6, functions)
    one = group.programs.memory(1, functions)
    assert one < whole
    limit = 0.6 * whole / 2**30
    text, members = text_of(compose(*overrides, f"runtime.memory_gib={limit}"))
    assert "a group of 6 runs is cut into" in text
    assert [m.state for m in members] == ["completed"] * 6


def test_fewer_runs_at_once_where_each_takes_much(compose):
    overrides = ("seed=0,1,2", "runtime.threads=2", "steps=20")
    (group,) = plan(compose(*overrides))
    limit = 1.5 * group.programs.memory(1, group.task.functions) / 2**30
    text, members = text_of(compose(*overrides, f"runtime.memory_gib={limit}"))
    assert "fewer runs at a time" in text
    assert [m.state for m in members] == ["completed"] * 3


def test_explain_says_what_each_program_takes(compose):
    configs = compose("norm=rmsnorm,derf", "steps=10", "runtime.explain=true")
    text, _ = text_of(configs)
    assert "norm=derf" in text
    (derf,) = plan(compose("norm=derf", "steps=10"))
    assert f"{derf.programs.program.n_params:,}" in text


def test_flops_follow_the_usual_formula(compose):
    """B T (6 N + 12 L D T), N the weights of matrix products: PaLM, appendix B."""
    (group,) = plan(compose("model.n_layers=3", "seq_len=32", "batch_size=4"))
    d, layers, tokens, seq, vocab = 32, 3, 4 * 32, 32, 64
    n = 12 * layers * d**2 + vocab * d
    expected = tokens * (6 * n + 12 * layers * d * seq)
    assert group.programs.flops_per_step() == expected


def test_flops_count_a_scan_once_per_iteration():
    def chain(x, w):
        return jax.lax.scan(lambda x, w: (x @ w, None), x, w)[0]

    x, w = jnp.zeros((5, 8)), jnp.zeros((7, 8, 8))
    assert matmul_flops(chain, x, w) == 7 * 2 * 5 * 8 * 8


def test_profile_traces_the_steps_and_changes_no_bit(compose):
    plain = api.run(compose("steps=30", "name=plain"), console=Console(quiet=True))
    traced = api.run(
        compose("steps=30", "name=traced", "runtime.profile=10:13"),
        console=Console(quiet=True),
    )
    folder = traced[0].directory.path / "profile"
    assert any(p.stat().st_size > 1000 for p in folder.rglob("*.xplane.pb"))
    assert not (plain[0].directory.path / "profile").exists()
    assert traced[0].directory.status().params_digest == (
        plain[0].directory.status().params_digest
    )


@pytest.mark.parametrize("text", ["10", "a:b", "5:4", "0:3", "-1:3", ""])
def test_a_wrong_span_is_refused(text):
    with pytest.raises(ValueError, match="expected"):
        parse_span(text)


def test_explain_knows_programs_that_take_the_depth_as_an_input(compose):
    configs = compose("model.n_layers=2,4", "runtime.explain=true", task="depth")
    text, members = text_of(configs)
    assert "2 runs, 1 program" in text
    assert [m.state for m in members] == ["completed"] * 2


def test_jobs_that_are_the_same_run_are_told(compose):
    text, members = text_of(compose("log_every=1,2", "steps=5"))
    assert len(members) == 1
    assert "2 jobs, of which 1 are the same run" in text
