"""What is wrong with a command line, in one line that names the fix."""

import runpy

import pytest
from hydra import initialize_config_dir
from hydra.errors import HydraException

from experiments import api
from experiments.errors import ALIASES, RunFailed, UserError, nearest, other_name
from experiments.explain import one_line
from experiments.known import Known, Place
from tests.launching import ROOT


@pytest.mark.parametrize(
    "overrides, message",
    [
        ("norm=rmsnrom", "norm=rmsnrom: no such choice; did you mean rmsnorm?"),
        ("norm=zzz", " choices of norm: see --help)"),
        ("norm=", " choices of norm: see --help)"),
        ("schedule=zzz", "no such choice (choices of schedule: constant, "),
        ("experiment=xoing", "experiment=xoing: no such choice; did you mean xiong?"),
        ("norm@model.ffn_norm=drf", "norm=drf: no such choice; did you mean derf?"),
        (
            "norm@model.fnal_norm=derf",
            "norm@model.fnal_norm: no such place for a choice; did you mean "
            "norm@model.final_norm?",
        ),
        ("modle=tiny", "modle: no such key; did you mean model?"),
        ("depth=4", "depth: no such key; did you mean model.n_layers?"),
        ("learning_rate=1", "did you mean optimizer.learning_rate?"),
        ("lr=1e-3", "lr: no such key; did you mean optimizer.learning_rate?"),
        ("d_ff=8", "d_ff: no such key; did you mean model.d_ff?"),
        ("model.depth=4", "model.depth: no such key; did you mean model.n_layers?"),
        ("runtime.layuot=map", "did you mean runtime.layout?"),
        ("zzz=1", "zzz: no such key"),
        (
            "norm=derf model.norm.alpha_inti=0.3",
            "model.norm.alpha_inti: Derf has no such keyword; did you mean alpha_init? "
            "(it has alpha_init, shift_init, shift, bias)",
        ),
        ("steps", "steps: not an override; expected key=value (or key=a,b with -m)"),
        ("=4", "=4: not an override; expected key=value"),
        ("x=[1", "x=[1: not an override"),
        ("norm@model.ffn_norm=null", "to leave one out write ~norm@model.ffn_norm"),
        ("norm=3", "norm=3: a choice is a name"),
        ("+norm=derf", "norm: has a choice already; replace it without the +"),
        ("~optimizer.momentum", "'optimizer.momentum' does not exist"),
        ("tags.x=1", "tags.x=1: a new tag needs a plus: +tags.x=1"),
        ("+seed=1", "+seed=1: it is there already; change it without the +: seed=1"),
        ("~nrom", "~nrom: 'nrom' does not exist; did you mean norm?"),
        ("~norm=derf", "norm has another choice; to leave it out write ~norm"),
        ("model/norm=derf", "model/norm: no such group; did you mean norm?"),
        ("model/ffn_norm=derf", "no such group; did you mean norm@model.ffn_norm?"),
        ("hydra.launher=x", "hydra.launher: no such key; did you mean hydra.launcher?"),
        ("data.path=a=b", """needs quotes: 'data.path="a=b"'"""),
        (
            "model.ffn.n_shared=2",
            "model.ffn.n_shared: MLP has no such keyword; ffn=moe, ffn=moe_deepseek, ",
        ),
        (
            "model.norm.alpha_init=1",
            "RMSNorm has no such keyword; norm=affine, norm=arctan, norm=derf and 10 more "
            "have it (it has eps, ",
        ),
        (
            "model.attn_norm.n_groups=2",
            "model.attn_norm.n_groups: nothing is chosen there; "
            "norm@model.attn_norm=groupnorm has it",
        ),
        ("model.from_chekpoint=x", "no such keyword; did you mean from_checkpoint?"),
        ("name=${nope}", "Interpolation key 'nope' not found"),
        ("+model.depth=4", "model.depth: LanguageModel has no such keyword; did you"),
        ("norm=[rmsnorm,derf]", "norm: expected one choice, got [rmsnorm,derf]"),
        (
            "norm=[a,b]",
            "norm: expected one choice, got [a,b] (to run each, write -m no",
        ),
        ("logger=[wandb,mlfow]", "logger=mlfow: no such choice; did you mean mlflow?"),
        ("~norm", "model.norm: LanguageModel needs it"),
        ("~model", "model: expected a part"),
        ("model.norm=3", "model.norm: expected a part"),
        ("model.d_model=130", "model.d_model=130 is not divisible by n_heads=4"),
    ],
)
def test_a_mistake_is_told_in_one_line_that_names_the_fix(overrides, message):
    with pytest.raises(UserError) as error:
        api.compose(overrides.split())
    told = str(error.value)
    assert message in told
    assert "\n" not in told
    assert len(told) < 400


def test_only_mistakes_are_explained():
    with pytest.raises(ZeroDivisionError):
        one_line(ZeroDivisionError("ours"))
    assert one_line(RunFailed("1 of 2 runs failed")) == "error: 1 of 2 runs failed"
    assert one_line(UserError("seed: no")) == "error: seed: no"


def test_what_hydra_says_in_many_lines_becomes_one(monkeypatch):
    monkeypatch.setattr("sys.argv", ["launch.py", "a=1"])
    error = HydraException("first line\n  second line\n    object_type=dict\n")
    assert one_line(error) == "error: first line second line"


@pytest.fixture(scope="module")
def default() -> dict:
    (config,) = api.compose([])
    return config.to_config()


@pytest.mark.parametrize("key", sorted(set(ALIASES.values())))
def test_an_alias_leads_to_a_key_of_the_default_config(default, key):
    node = default
    for name in key.split("."):
        node = node[name]
    assert not isinstance(node, dict)


def test_other_names_are_found_below_a_dot_and_nearly_right():
    assert other_name("num_layers") == "model.n_layers"
    assert other_name("model.hidden_dims") == "model.d_model"
    assert other_name("model.n_layers") is None
    assert other_name("zzz") is None


def test_nothing_is_suggested_where_nothing_is_close():
    assert nearest("rmsnrom", ["rmsnorm", "derf"]) == "; did you mean rmsnorm?"
    assert nearest("zzz", ["rmsnorm", "derf"]) == ""


# -- files of the user's own, found by --config-dir --------------------------------

FILES = {
    "mine.yaml": "defaults: [config, override norm: derf]",
    "missing.yaml": "defaults: [config, norm: derf]",
    "needless.yaml": "defaults: [config, override nrom: derf]",
    "nowhere.yaml": "defaults: [config, override newton_schulz: quintic]",
    "early.yaml": "defaults: [override norm: derf, config]",
    "broken.yaml": "steps: [4",
    "norm/ours.yaml": """# @package model.norm
_target_: blocks.norms.derf.Derf
_partial_: true
alpha_init: 0.5
special: 1
""",
    "experiment/below.yaml": "defaults: [norm: derf]",
    "experiment/override.yaml": "defaults: [override norm: derf]",
    "experiment/again.yaml": "defaults: [/norm: derf]",
    "experiment/hydras.yaml": "defaults: [override hydra/launcher: basic]",
    "experiment/choice.yaml": "defaults: [override /norm: drf]",
    "experiment/good.yaml": "defaults: [override /norm: derf]",
}


@pytest.fixture
def own(tmp_path):
    """A folder of configs beside those of the project."""
    for name, text in FILES.items():
        path = tmp_path / "own" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        head = "# @package _global_\n" if name.startswith("experiment") else ""
        path.write_text(head + text)
    return tmp_path / "own"


def told(monkeypatch, folder, command: str) -> str:
    """What a command with --config-dir says as it ends, as in launch.py."""
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")  # it is set there, and stays
    options = ["--config-dir", str(folder)]
    monkeypatch.setattr("sys.argv", ["launch.py", *options, *command.split()])
    with pytest.raises(SystemExit) as error:
        runpy.run_path(str(ROOT / "launch.py"), run_name="__main__")
    return str(error.value)


@pytest.mark.parametrize(
    "command, message",
    [
        # Suggestions know the folder.
        ("norm=our", "norm=our: no such choice; did you mean ours?"),
        (
            "norm=ours model.norm.alpha_inti=1",
            "Derf has no such keyword; did you mean al",
        ),
        ("model.norm.special=1", "RMSNorm has no such keyword; norm=ours has it"),
        (
            "--config-name mien",
            "--config-name mien: no such config; did you mean mine?",
        ),
        (
            "--config-name mine model.norm.shfit=1",
            "Derf has no such keyword; did you m",
        ),
        # Defaults lists.
        ("--config-name missing", "written '- override /norm: ...'"),
        ("--config-name needless", "override nrom: no such group; did you mean norm?"),
        ("--config-name nowhere", "chosen before, leave out the word override"),
        (
            "--config-name early",
            "early: 'override norm: derf' must stand after everyth",
        ),
        ("--config-name broken", "broken.yaml, line 1, column 10: not YAML: expected"),
        (
            "experiment=below",
            "experiment/below: 'norm: derf' is looked for below experi",
        ),
        ("experiment=override", "from the top it is written 'override /norm'"),
        ("experiment=hydras", "from the top it is written 'override /hydra/launcher'"),
        ("experiment=again", "norm: chosen twice in defaults lists; the later one is"),
        ("experiment=choice", "norm=drf: no such choice; did you mean derf?"),
        ("experiment=goood", "experiment=goood: no such choice; did you mean good?"),
    ],
)
def test_a_mistake_with_files_of_ones_own_too(monkeypatch, own, command, message):
    line = told(monkeypatch, own, command)
    assert line.startswith("error: ")
    assert message in line
    assert "\n" not in line
    assert len(line) < 400


def test_a_folder_that_is_not_there_is_named(monkeypatch, tmp_path):
    line = told(monkeypatch, tmp_path / "nope", "steps=1")
    assert line.endswith(f"Additional config directory '{tmp_path}/nope' not found")


def test_the_folder_of_a_hydra_that_is_running_counts_too(own):
    with initialize_config_dir(str(own), version_base="1.3"):
        place = Place.current()
        assert place.folders == (str(own),)
    assert "ours" in Known([], place).options("norm")
    assert Known(["norm=ours"], place).config.model.norm.special == 1
    assert Place.current() == Place()
